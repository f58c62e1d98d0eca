//! XDP programs of devices: pinned links, updated in place. A device has one for each mode at most: the kernel cannot
//! change the mode of a link, and does not report it, so the pins of both have different names.

use std::path::PathBuf;

use bpf::{BpfFs, Link, Program, XdpMode, names_in};
use datapath_api::{DatapathError, Step};
use datapath_object::xdp::ENTRY;

use crate::interfaces::device_links::{devices_with_links, remove_link};

/// A device on which a program runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) ifindex: u32,
}

fn pin_name(mode: XdpMode) -> String {
    match mode {
        XdpMode::Native => ENTRY.to_owned(),
        XdpMode::Generic => format!("{ENTRY}_generic"),
    }
}

fn pin(fs: &BpfFs, device: &str, mode: XdpMode) -> PathBuf {
    fs.device_links(device).join(pin_name(mode))
}

/// Attaches a program to a device, or replaces the current one. Returns the link.
pub(crate) fn attach(fs: &BpfFs, device: &Device, mode: XdpMode, program: &Program) -> bpf::Result<Link> {
    let path = pin(fs, &device.name, mode);
    if let Ok(link) = Link::open(&path)
        && link.info()?.ifindex == Some(device.ifindex)
        && link.update(program).is_ok()
    {
        return Ok(link);
    }
    for mode in [XdpMode::Native, XdpMode::Generic] {
        remove_link(&pin(fs, &device.name, mode))?;
    }
    let link = Link::xdp(program, device.ifindex, mode)?;
    create_folder(fs, device)?;
    link.pin(&path)?;
    Ok(link)
}

/// Pins an attached link again if its pin is missing. Returns whether it was.
pub(crate) fn pin_again(fs: &BpfFs, device: &Device, mode: XdpMode, link: &Link) -> bpf::Result<bool> {
    let path = pin(fs, &device.name, mode);
    match Link::open(&path) {
        Ok(_) => Ok(false),
        Err(error) if error.is_not_found() => {
            create_folder(fs, device)?;
            link.pin(&path).map(|()| true)
        }
        Err(error) => Err(error),
    }
}

fn create_folder(fs: &BpfFs, device: &Device) -> bpf::Result<()> {
    let path = fs.device_links(&device.name);
    std::fs::create_dir_all(&path).map_err(|source| bpf::Error::File {
        operation: "create folder",
        path,
        source,
    })
}

/// Detaches the programs of a device.
pub(crate) fn detach(fs: &BpfFs, device: &str) -> Result<(), DatapathError> {
    for mode in [XdpMode::Native, XdpMode::Generic] {
        remove_link(&pin(fs, device, mode)).step(|| format!("detach XDP from device {device}"))?;
    }
    Ok(())
}

/// Returns the folders of devices with links of programs.
pub(crate) fn attached(fs: &BpfFs) -> Result<Vec<String>, DatapathError> {
    let mut found = Vec::new();
    for device in devices_with_links(fs)? {
        let names = names_in(&fs.device_links(&device)).step(|| format!("list the links of {device}"))?;
        if names.iter().any(|name| name.starts_with(ENTRY)) {
            found.push(device);
        }
    }
    Ok(found)
}
