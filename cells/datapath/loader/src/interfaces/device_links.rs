//! Programs on long-lived devices: pinned tcx links, updated in place; tc filters on kernels without tcx.

use std::path::{Path, PathBuf};

use bpf::tc::Tc;
use bpf::{BpfFs, Direction, Link, Program, names_in, unpin};

use datapath_api::{DatapathError, Step};

/// `ENOLINK`: the device of a link is gone. The same on all architectures of Linux.
const ENOLINK: i32 = 67;

/// A program's place on a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The device's name.
    pub device: String,
    /// Its index.
    pub ifindex: u32,
    /// The program's name.
    pub program: &'static str,
    /// Whether it runs for packets that leave by the device.
    pub egress: bool,
}

impl Place {
    fn direction(&self) -> Direction {
        if self.egress { Direction::Egress } else { Direction::Ingress }
    }

    /// Returns the name of its filter, `<program>-<device>`.
    pub(crate) fn filter(&self) -> String {
        format!("{}-{}", self.program, self.device)
    }
}

/// How a program was attached, with the cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// A link was created and pinned, which waits for a grace period.
    Created,
    /// The program of the pinned link was replaced, which takes microseconds.
    Updated,
    /// A tc filter was added or replaced.
    Filter,
}

/// How programs are attached to devices on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// By tcx links (Linux 6.6, `enable-tcx`), else by tc filters.
    pub tcx: bool,
    /// Priority of tc filters.
    pub filter_priority: u16,
}

/// Creates the links for [`attach`], with a program that passes packets on to the next one. Creating a link waits for a
/// grace period under the kernel's interface lock (RTNL), replacing its program takes microseconds: so links are
/// created while programs are verified. A crash in between leaves links without effect.
pub fn reserve<'a>(
    fs: &BpfFs,
    style: Style,
    places: impl Iterator<Item = &'a Place>,
) -> Result<(), DatapathError> {
    if !style.tcx {
        return Ok(());
    }
    let mut passing_on = None;
    for place in places {
        let step = || format!("make a link for {}", place.filter());
        if open_link(fs, place).step(step)?.is_none() {
            let program = match &passing_on {
                Some(program) => program,
                None => passing_on.insert(Program::passing_on().step(step)?),
            };
            create_link(fs, place, program).step(step)?;
        }
    }
    Ok(())
}

/// Attaches a program to its place, or replaces the current one.
pub fn attach(fs: &BpfFs, style: Style, place: &Place, program: &Program) -> Result<Attached, DatapathError> {
    let step = || format!("attach {}", place.filter());
    let tc = Tc::new().step(step)?;
    if !style.tcx {
        tc.attach_with_clsact(
            place.ifindex,
            place.direction(),
            style.filter_priority,
            &place.filter(),
            program,
        )
        .step(step)?;
        // After the filter is attached: in the reverse order packets would pass without a program.
        remove_link(&pin(fs, place)).step(step)?;
        return Ok(Attached::Filter);
    }
    let updated = match open_link(fs, place).step(step)?.map(|link| link.update(program)) {
        Some(Err(e)) if e.errno() != Some(ENOLINK) => return Err(e).step(step),
        Some(Ok(())) => Attached::Updated,
        // The device was deleted a moment ago, or another one has the name.
        Some(Err(_)) | None => {
            create_link(fs, place, program).step(step)?;
            Attached::Created
        }
    };
    remove_filter(&tc, style, place)?;
    Ok(updated)
}

/// Opens the pinned link of a place, if it is attached to the current device of that name.
fn open_link(fs: &BpfFs, place: &Place) -> bpf::Result<Option<Link>> {
    let Ok(link) = Link::open(&pin(fs, place)) else { return Ok(None) };
    let info = link.info()?;
    let here = info.ifindex == Some(place.ifindex) && info.direction == Some(place.direction());
    Ok(here.then_some(link))
}

/// Creates and pins a link, in place of one of a previous device of that name.
fn create_link(fs: &BpfFs, place: &Place, program: &Program) -> bpf::Result<()> {
    let folder = fs.device_links(&place.device);
    remove_link(&pin(fs, place))?;
    std::fs::create_dir_all(&folder).map_err(|source| bpf::Error::File {
        operation: "create folder",
        path: folder,
        source,
    })?;
    Link::tcx(program, place.ifindex, place.direction())?.pin(&pin(fs, place))
}

/// Opens the pinned link of a place, to keep it alive: a link with an open descriptor outlives its pin.
pub(crate) fn hold(fs: &BpfFs, place: &Place) -> Option<Link> {
    Link::open(&pin(fs, place)).ok()
}

/// Returns the pin of a place's link.
pub(crate) fn pin(fs: &BpfFs, place: &Place) -> PathBuf {
    fs.device_links(&place.device).join(place.program)
}

/// Repins an attached link if its pin is missing or refers to another object. Returns whether it was.
pub(crate) fn pin_again(fs: &BpfFs, place: &Place, link: &Link) -> Result<bool, DatapathError> {
    let (folder, path) = (fs.device_links(&place.device), pin(fs, place));
    let step = || format!("pin the link of {}", place.filter());
    let id = link.info().step(step)?.id;
    let done = match Link::open(&path).and_then(|pinned| pinned.info()) {
        Ok(pinned) if pinned.id == id => return Ok(false),
        Err(e) if e.is_not_found() => std::fs::create_dir_all(&folder)
            .map_err(|source| bpf::Error::File { operation: "create folder", path: folder.clone(), source })
            .and_then(|()| link.pin(&path)),
        _ => fs.replace_pin(&path, |pending| link.pin(pending)),
    };
    done.map(|()| true).step(step)
}

/// Whether the program with that id is attached to its place: by the open link, or by a filter.
pub(crate) fn is_attached(
    place: &Place,
    program: u32,
    link: Option<&Link>,
    tc: &Tc,
) -> Result<bool, DatapathError> {
    let step = || format!("look for {}", place.filter());
    if let Some(link) = link {
        let info = link.info().step(step)?;
        return Ok(info.ifindex == Some(place.ifindex) && info.program == program);
    }
    let filters = tc.filters(place.ifindex, place.direction());
    let is_same = |filter: &bpf::tc::Filter| filter.name == place.filter() && filter.program == program;
    match filters {
        Err(e) if e.is_not_found() => Ok(false),
        found => Ok(found.step(step)?.iter().any(is_same)),
    }
}

/// Detaches a pinned link and removes its pin. Without the explicit detach, the program stays attached until the kernel
/// frees the link asynchronously, and the same program cannot be attached twice.
pub(super) fn remove_link(pin: &Path) -> bpf::Result<()> {
    if let Ok(link) = Link::open(pin) {
        match link.detach() {
            Err(e) if e.errno() != Some(ENOLINK) => return Err(e),
            _ => {}
        }
    }
    unpin(pin).map(drop)
}

/// Removes the tc filter of a run without tcx, which would run after the link's program.
fn remove_filter(tc: &Tc, style: Style, place: &Place) -> Result<(), DatapathError> {
    let step = || format!("remove tc filter {}", place.filter());
    let filters = tc.filters(place.ifindex, place.direction()).step(step)?;
    if filters.iter().any(|f| f.priority == style.filter_priority && f.name == place.filter()) {
        tc.detach(place.ifindex, place.direction(), style.filter_priority).step(step)?;
    }
    Ok(())
}

/// Detaches a program from its place, if it and the device exist.
pub fn detach(fs: &BpfFs, style: Style, place: &Place) -> Result<(), DatapathError> {
    let step = || format!("detach {}", place.filter());
    remove_link(&fs.device_links(&place.device).join(place.program)).step(step)?;
    match remove_filter(&Tc::new().step(step)?, style, place) {
        Err(DatapathError::Kernel { source, .. }) if source.is_not_found() => Ok(()),
        other => other,
    }
}

/// Returns the devices that have pinned links.
pub fn devices_with_links(fs: &BpfFs) -> Result<Vec<String>, DatapathError> {
    names_in(&fs.root().join("cilium/devices")).step(|| "list the devices' links".to_owned())
}

/// Detaches all programs of the datapath from a device: pinned links, and filters by name on kernels without tcx.
pub fn detach_all(fs: &BpfFs, style: Style, device: &str, ifindex: Option<u32>) -> Result<(), DatapathError> {
    let step = || format!("detach from device {device}");
    let folder = fs.device_links(device);
    for name in names_in(&folder).step(step)? {
        remove_link(&folder.join(name)).step(step)?;
    }
    // Both folders may be absent.
    let _ = std::fs::remove_dir(&folder);
    let _ = folder.parent().map(std::fs::remove_dir);
    if let (false, Some(ifindex)) = (style.tcx, ifindex) {
        let tc = Tc::new().step(step)?;
        for direction in [Direction::Ingress, Direction::Egress] {
            let filters = tc.filters(ifindex, direction).step(step)?;
            if filters.iter().any(|f| f.name.starts_with("cil_") && f.priority == style.filter_priority) {
                tc.detach(ifindex, direction, style.filter_priority).step(step)?;
            }
        }
    }
    Ok(())
}
