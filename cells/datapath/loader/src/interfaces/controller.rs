//! Brings the host's side to what it shall be, in the order that brings pods' packets through first.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bpf::Link;
use datapath_abi::{DeviceValue, EndpointInfo, EndpointKey, NodeConfig, lxc_flag, mac_word};
use devices::Netlink;
use maps::Maps;

use crate::endpoints::drift;
use crate::endpoints::kernel::KernelDatapath;
use crate::guard::nftables::{self, Chain};
use crate::interfaces::desired::{Desired, NativeDevice};
use crate::interfaces::device_links::{self, Place, Style};
use crate::interfaces::host::{self, HOST_DEVICE, HostDevices, HostSettings, NET_DEVICE};
use crate::programs::set::ProgramSet;
use datapath_api::{DatapathError, Step};

/// Threads that verify programs at once.
pub(crate) const LOAD_THREADS: usize = 2;
/// How long arrays of programs that were replaced stay: packets may still be on their way through them.
const GRACE: Duration = Duration::from_secs(1);

/// The counts of a round, for the log.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// How long loading took, if programs were loaded in this round or in one before that failed.
    pub(crate) loaded: Option<Duration>,
    /// Interfaces of pods that were switched to new programs.
    pub(crate) switched: usize,
    /// Places on devices that got a program.
    pub(crate) attached: usize,
    /// The kernel has no nftables, so the host's packets have no mark.
    pub(crate) unmarked: bool,
    /// Why pods' interfaces still have programs of before; everything else is done. The round has to be repeated.
    pub(crate) not_switched: Option<DatapathError>,
}

/// The host's side, with what it was brought to last.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) maps: Arc<Maps>,
    pub(crate) datapath: Arc<KernelDatapath>,
    style: Style,
    /// How long loading took, as long as the programs are not everywhere.
    loaded: Option<Duration>,
    /// The programs that all pods' interfaces have.
    switched: Option<Arc<ProgramSet>>,
    /// When programs were replaced everywhere, whose array must go later.
    replaced: Option<Instant>,
    /// Whether packets of the host are marked, once that was tried.
    marked: Option<bool>,
    /// Whether maps may be on their way to another layout, which end when programs of before are nowhere any more.
    moving: bool,
    /// Whether entries were copied into those maps: from then on programs write into them.
    copied: bool,
    /// Places that run the programs in use, with the links they are held by: a link whose pin is removed lives on.
    pub(crate) attached: BTreeMap<Place, Option<Link>>,
    pub(crate) settled: Option<HostSettings>,
    /// The map entries as they were written last.
    pub(crate) written: Option<Desired>,
}

impl Controller {
    pub(crate) fn new(maps: Arc<Maps>, datapath: Arc<KernelDatapath>, style: Style) -> Controller {
        Controller {
            maps,
            datapath,
            style,
            loaded: None,
            switched: None,
            replaced: None,
            marked: None,
            moving: true,
            copied: false,
            attached: BTreeMap::new(),
            settled: None,
            written: None,
        }
    }

    /// Creates the host devices, so that others find them; [`Controller::apply`] does it too.
    pub(crate) fn devices(&self) -> Result<HostDevices, DatapathError> {
        Ok(host::ensure_devices(&mut Netlink::open()?)?)
    }

    /// Applies what differs. Can be called again after an error, and after everything.
    pub(crate) fn apply(&mut self, desired: &Desired) -> Result<Report, DatapathError> {
        let mut nl = Netlink::open()?;
        let mut report = Report { unmarked: !self.mark_host_packets()?, ..Report::default() };
        let devices = host::ensure_devices(&mut nl)?;
        let constants = NodeConfig {
            host_ifindex: devices.host.index,
            net_ifindex: devices.net.index,
            ..desired.constants
        };
        let places = places(&devices, &desired.devices);
        let programs = match self.datapath.programs().filter(|p| *p.config() == constants) {
            Some(programs) => programs,
            None => {
                let started = Instant::now();
                let programs = Arc::new(self.load(constants, &places)?);
                self.loaded = Some(started.elapsed());
                self.replaced = None;
                self.attached.clear();
                programs
            }
        };
        // Opened by the load, if not before.
        let moves = match self.moving {
            true => self.maps.fs().moves().step(|| "list maps of another layout".to_owned())?,
            false => Vec::new(),
        };
        report.loaded = self.loaded;
        if !self.switched.as_ref().is_some_and(|switched| Arc::ptr_eq(switched, &programs)) {
            // A second copy would overwrite what programs have written into the new maps since.
            if !self.copied {
                for moving in &moves {
                    moving.copy().step(|| "bring entries into maps of another layout".to_owned())?;
                }
                self.copied = true;
            }
            match self.datapath.switch(programs.clone(), &mut nl) {
                Ok(switched) => {
                    report.switched = switched;
                    self.switched = Some(programs.clone());
                }
                // One interface must not keep the rest of the node waiting.
                Err(error @ DatapathError::NotSwitched { .. }) => report.not_switched = Some(error),
                Err(error) => return Err(error),
            }
        }
        // The link's number is part of what is settled: a pair made anew has no address.
        if self.settled.as_ref() != Some(&desired.host) || report.loaded.is_some() {
            host::ensure_addresses(&mut nl, &devices.host, &desired.host)?;
            self.settled = Some(desired.host.clone());
        }
        self.write_rows(desired)?;
        self.written = Some(desired.clone());
        // Connections of endpoints that are new or go must be found in one place.
        if moves.is_empty() {
            self.datapath.set_ready();
        }

        report.attached = self.attach(&programs, &places)?;
        self.detach_others(&desired.devices, &mut nl)?;
        if report.not_switched.is_some() {
            return Ok(report);
        }
        for moving in moves {
            moving.finish().step(|| "end the change of a map's layout".to_owned())?;
        }
        self.moving = false;
        if self.loaded.take().is_some() {
            self.replaced = Some(Instant::now());
        }
        self.datapath.set_ready();
        Ok(report)
    }

    /// Has the host's packets marked, which must be before programs take packets without a mark for the world's: those in
    /// use may be of a build that did not. False if the kernel cannot.
    fn mark_host_packets(&mut self) -> Result<bool, DatapathError> {
        if let Some(marked) = self.marked {
            return Ok(marked);
        }
        let marked = match Chain::HostPackets.install() {
            Err(error) if nftables::is_unsupported(&error) => {
                tracing::warn!(%error, "No rule in nftables to mark the host's packets, policy takes them for the world's");
                false
            }
            result => result.map(|()| true).map_err(DatapathError::Rule)?,
        };
        self.marked = Some(marked);
        Ok(marked)
    }

    /// Loads programs, and meanwhile makes the links that they will need: that waits, and verifying computes.
    fn load(&self, constants: NodeConfig, places: &BTreeSet<Place>) -> Result<ProgramSet, DatapathError> {
        std::thread::scope(|scope| {
            let new = places.iter().filter(|place| !self.attached.contains_key(place));
            let links = scope.spawn(|| device_links::reserve(self.maps.fs(), self.style, new));
            let programs = ProgramSet::load(&self.maps, constants, LOAD_THREADS);
            let links = links.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            if let Err(error) = links {
                // Whatever it is, attaching meets it again.
                tracing::debug!(%error, "A link could not be made ahead");
            }
            programs
        })
    }

    /// Removes arrays of programs that were replaced everywhere, a second later; how long until it has something to do.
    pub(crate) fn retire(&mut self) -> Result<Option<Duration>, DatapathError> {
        let (Some(since), Some(programs)) = (self.replaced, self.datapath.programs()) else {
            return Ok(None);
        };
        if let Some(left) = GRACE.checked_sub(since.elapsed()).filter(|left| !left.is_zero()) {
            return Ok(Some(left));
        }
        programs.remove_others(self.maps.fs())?;
        // Those that no program uses.
        for moving in self.maps.fs().moves().step(|| "list maps of another layout".to_owned())? {
            moving.finish().step(|| "end the change of a map's layout".to_owned())?;
        }
        self.replaced = None;
        Ok(None)
    }

    fn attach(&mut self, programs: &ProgramSet, places: &BTreeSet<Place>) -> Result<usize, DatapathError> {
        for place in self.attached.keys().filter(|place| !places.contains(place)) {
            device_links::detach(self.maps.fs(), self.style, place)?;
        }
        self.attached.retain(|place, _| places.contains(place));
        let mut attached = 0;
        for place in places {
            if !self.attached.contains_key(place) {
                let program = programs.program(place.program)?;
                device_links::attach(self.maps.fs(), self.style, place, program)?;
                let link = if self.style.tcx { device_links::hold(self.maps.fs(), place) } else { None };
                self.attached.insert(place.clone(), link);
                attached += 1;
            }
        }
        Ok(attached)
    }

    /// Takes programs off devices that face the network no more, and off those of another agent before us.
    fn detach_others(
        &self,
        devices: &BTreeMap<String, NativeDevice>,
        nl: &mut Netlink,
    ) -> Result<(), DatapathError> {
        let folder = |name: &str| name.replace('.', "-");
        for found in device_links::devices_with_links(self.maps.fs())? {
            let ours = [HOST_DEVICE, NET_DEVICE].contains(&found.as_str());
            if ours || devices.keys().any(|name| folder(name) == found) {
                continue;
            }
            let link = nl.links()?.into_iter().find(|link| folder(&link.name) == found);
            device_links::detach_all(self.maps.fs(), self.style, &found, link.map(|link| link.index))?;
        }
        Ok(())
    }

    /// Rows of the host in `cilium_lxc`, of devices in `cilium_devices`; gives those that were not so.
    pub(crate) fn write_rows(&self, desired: &Desired) -> Result<Vec<String>, DatapathError> {
        let addresses = write_addresses(&self.maps, &desired.addresses)?;
        Ok([addresses, write_devices(&self.maps, &desired.devices)?].concat())
    }
}

/// `cilium_devices`: the devices that face the network.
fn write_devices(
    maps: &Maps,
    devices: &BTreeMap<String, NativeDevice>,
) -> Result<Vec<String>, DatapathError> {
    let step = || "write the device map".to_owned();
    let wanted: BTreeMap<u32, DeviceValue> = devices.values().map(row).collect();
    let map = maps.devices();
    let found = map.entries().step(step)?;
    let mut changed = Vec::new();
    for (ifindex, _) in found.iter().filter(|(ifindex, _)| !wanted.contains_key(ifindex)) {
        map.delete(ifindex).step(step)?;
        changed.push(format!("cilium_devices: interface {ifindex}"));
    }
    for (ifindex, value) in wanted {
        if !found.contains(&(ifindex, value)) {
            map.update(&ifindex, &value).step(step)?;
            changed.push(format!("cilium_devices: interface {ifindex}"));
        }
    }
    Ok(changed)
}

/// The host's addresses in `cilium_lxc`.
fn write_addresses(maps: &Maps, addresses: &BTreeSet<IpAddr>) -> Result<Vec<String>, DatapathError> {
    let step = || "write the host's addresses".to_owned();
    let map = maps.lxc();
    let value = EndpointInfo { flags: lxc_flag::HOST, ..EndpointInfo::default() };
    let found = map.filter(|_, info| info.flags & lxc_flag::HOST != 0).step(step)?;
    let mut changed = Vec::new();
    for (key, _) in &found {
        if !key.ip().is_some_and(|ip| addresses.contains(&ip)) {
            map.delete(key).step(step)?;
            changed.push(drift::address(key));
        }
    }
    for key in addresses.iter().map(|ip| EndpointKey::from(*ip)) {
        if !found.contains(&(key, value)) {
            map.update(&key, &value).step(step)?;
            changed.push(drift::address(&key));
        }
    }
    Ok(changed)
}

fn row(device: &NativeDevice) -> (u32, DeviceValue) {
    let l3 = u8::from(device.mac.is_none());
    let mac = device.mac.map_or(0, mac_word);
    (device.ifindex, DeviceValue { mac, l3, ..DeviceValue::default() })
}

/// Where programs run: what goes to pods and to the host by cilium_host and cilium_net, what comes in by devices.
fn places(host: &HostDevices, devices: &BTreeMap<String, NativeDevice>) -> BTreeSet<Place> {
    let place = |link: &devices::Link, program, egress| Place {
        device: link.name.clone(),
        ifindex: link.index,
        program,
        egress,
    };
    let own = [
        place(&host.host, datapath_object::FROM_HOST, true),
        place(&host.host, datapath_object::TO_HOST, false),
        place(&host.net, datapath_object::TO_HOST, false),
    ];
    let native = devices.iter().map(|(name, device)| Place {
        device: name.clone(),
        ifindex: device.ifindex,
        program: datapath_object::FROM_NETDEV,
        egress: false,
    });
    own.into_iter().chain(native).collect()
}
