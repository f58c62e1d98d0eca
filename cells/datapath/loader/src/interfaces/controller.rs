//! Applies the desired state of the host's side, in the order that restores forwarding of pods' packets first.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bpf::Link;
use bpf::tc::Tc;
use datapath_abi::{
    DIRECT_ROUTING, DeviceValue, EndpointInfo, EndpointKey, MasqueradeAddresses, NodeConfig, lxc_flag,
    mac_word,
};
use devices::Netlink;
use maps::{MASQUERADE_MAP, Maps};

use crate::endpoints::drift;
use crate::endpoints::kernel::KernelDatapath;
use crate::guard::host_mark;
use crate::interfaces::acceleration::{Accelerated, Accelerator};
use crate::interfaces::desired::{Desired, NativeDevice};
use crate::interfaces::device_links::{self, Place, Style};
use crate::interfaces::host::{self, HOST_DEVICE, HostDevices, HostSettings};
use crate::interfaces::ipip::{self, IpipError};
use crate::interfaces::tunnel::{self, TunnelError, TunnelSettings};
use crate::programs::egress;
use crate::programs::ipip::IpipSettings;
use crate::programs::set::ProgramSet;
use datapath_api::{DatapathError, HostMark, Step};

/// How long arrays of replaced programs stay: runs in flight may still make tail calls through them.
const GRACE: Duration = Duration::from_secs(1);

/// The outcome of a round, for the log and for health.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Duration of the load, if programs were loaded in this round or in a previous one that failed later.
    pub(crate) loaded: Option<Duration>,
    /// The programs are those of the run before.
    pub(crate) kept: bool,
    /// Interfaces of pods that were switched to new programs.
    pub(crate) switched: usize,
    /// Number of places on devices that got a program.
    pub(crate) attached: usize,
    /// Whether the kernel has no nftables, so that the host's packets have no mark.
    pub(crate) unmarked: bool,
    /// The name of the tunnel device, if there is one; the reason why it is missing.
    pub(crate) tunnel: Option<Result<&'static str, TunnelError>>,
    /// Whether the devices that add outer headers exist, or why one is missing; none without them.
    pub(crate) ipip: Option<Result<(), IpipError>>,
    /// The devices with XDP; none without acceleration.
    pub(crate) accelerated: Option<Accelerated>,
    /// The reason why a device has no XDP that must; everything else is done. The round has to be repeated.
    pub(crate) not_accelerated: Option<DatapathError>,
    /// The reason why pods' interfaces still have the previous programs; everything else is done. The round has to be
    /// repeated.
    pub(crate) not_switched: Option<DatapathError>,
}

/// Map entries and programs of the host that were missing.
#[derive(Debug, Default)]
pub(crate) struct LostPlaces {
    /// Programs that are not attached any more; the next [`Controller::apply`] attaches them.
    pub(crate) programs: Vec<String>,
    /// Pins that were made again.
    pub(crate) pins: Vec<String>,
}

/// The host's side, with the state that was applied last.
#[derive(Debug)]
pub(crate) struct Controller {
    maps: Arc<Maps>,
    datapath: Arc<KernelDatapath>,
    style: Style,
    /// Duration of the load, kept until the programs are attached everywhere.
    loaded: Option<Duration>,
    /// The programs that all pods' interfaces have.
    switched: Option<Arc<ProgramSet>>,
    /// When programs were replaced everywhere; their array is removed later.
    replaced: Option<Instant>,
    /// Whether packets of the host are marked by nftables; `None` before the first attempt.
    marked: Option<bool>,
    /// Whether rules of iptables mark them.
    host_mark: Option<Arc<HostMark>>,
    /// Whether maps may be migrating to another layout, which ends when the previous programs are detached everywhere.
    moving: bool,
    /// Whether entries were copied into those maps: from then on, programs write into them.
    copied: bool,
    /// Places that run the programs in use, with their open links: the descriptor keeps a link alive if its pin is
    /// removed.
    attached: BTreeMap<Place, Option<Link>>,
    /// Programs of XDP on devices.
    accelerator: Accelerator,
    /// Addresses as they were applied last.
    addressed: Option<HostSettings>,
    /// The map entries as they were written last.
    written: Option<Desired>,
    /// The tunnel device of the last round; kept when it is missing, to be created with the same index.
    tunnel: Option<devices::Link>,
    /// Whether the last attempt to create the tunnel device failed.
    tunnel_failed: bool,
    /// The indexes of the devices that add outer headers, as they are in the programs.
    ipip: [u32; 2],
}

impl Controller {
    pub(crate) fn new(
        maps: Arc<Maps>,
        datapath: Arc<KernelDatapath>,
        style: Style,
        host_mark: Option<Arc<HostMark>>,
    ) -> Controller {
        Controller {
            maps,
            datapath,
            style,
            loaded: None,
            switched: None,
            replaced: None,
            marked: None,
            host_mark,
            moving: true,
            copied: false,
            attached: BTreeMap::new(),
            accelerator: Accelerator::default(),
            addressed: None,
            written: None,
            tunnel: None,
            tunnel_failed: false,
            ipip: [0; 2],
        }
    }

    pub(crate) fn datapath(&self) -> &Arc<KernelDatapath> {
        &self.datapath
    }

    /// Creates the host devices before [`Controller::apply`], so that other cells find them.
    pub(crate) fn devices(&self) -> Result<HostDevices, DatapathError> {
        Ok(host::ensure_devices(&mut Netlink::open()?)?)
    }

    /// Applies the differences from the last call. Idempotent: may be repeated after an error.
    pub(crate) fn apply(&mut self, desired: &Desired) -> Result<Report, DatapathError> {
        let mut nl = Netlink::open()?;
        let mut report = Report::default();
        let devices = host::ensure_devices(&mut nl)?;
        let tunnel = self.ensure_tunnel(&mut nl, desired.tunnel.as_ref(), &mut report);
        let mac = |link: &devices::Link| link.hardware_addr.ethernet().map_or(0, mac_word);
        let mut constants = NodeConfig {
            host_ifindex: devices.host.index,
            net_ifindex: devices.net.index,
            ..desired.constants
        };
        if let Some(tunnel) = &tunnel {
            constants.host_mac = mac(&devices.host);
            (constants.tunnel_ifindex, constants.tunnel_mac) = (tunnel.index, mac(tunnel));
        }
        [constants.ipip_ifindex_ipv4, constants.ipip_ifindex_ipv6] =
            self.ensure_ipip(&mut nl, desired.ipip.as_ref(), &mut report);
        let places = places(&devices, tunnel.as_ref(), &desired.devices, egress::is_needed(&constants));
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
        report.unmarked = !self.mark_host_packets()?;
        // Maps of another layout are opened by the load at the latest.
        let moves = match self.moving {
            true => self.maps.fs().moves().step(|| "list maps of another layout".to_owned())?,
            false => Vec::new(),
        };
        report.loaded = self.loaded;
        report.kept = programs.is_kept();
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
                // A failing interface must not block the rest of the node.
                Err(error @ DatapathError::NotSwitched { .. }) => report.not_switched = Some(error),
                Err(error) => return Err(error),
            }
        }
        // A recreated pair has no address. Its indexes are constants of the programs, so it always implies a load.
        if self.addressed.as_ref() != Some(&desired.host) || report.loaded.is_some() {
            host::ensure_addresses(&mut nl, &devices.host, &desired.host)?;
            self.addressed = Some(desired.host.clone());
        }
        self.write_entries(desired)?;
        self.written = Some(desired.clone());
        // Not during a migration, when connections of deleted endpoints may be in either map.
        if moves.is_empty() {
            self.datapath.set_ready();
        }

        report.attached = self.attach(&programs, &places)?;
        if report.loaded.is_some() {
            programs.repin(self.maps.fs())?;
        }
        self.detach_others(&places, &mut nl)?;
        if self.loaded.is_some() {
            self.detach_egress(desired, &places)?;
        }
        if report.not_switched.is_some() {
            return Ok(report);
        }
        for moving in moves {
            moving.finish().step(|| "end the change of a map's layout".to_owned())?;
        }
        self.moving = false;
        self.datapath.set_ready();
        // After the host's programs, the previous ones of which may redirect packets to those that are removed here.
        if self.loaded.is_some() && programs.config().endpoint_routes == 0 {
            let detached = self.datapath.detach_to_pods(&mut nl)?;
            if detached > 0 {
                tracing::info!(count = detached, "Pods have no routes of their own any more");
            }
        }
        if self.loaded.take().is_some() {
            self.replaced = Some(Instant::now());
            if let Err(error) = programs.keep(self.maps.fs()) {
                // The next run loads them again.
                tracing::debug!(%error, "The programs are not kept for the next run");
            }
        }
        // Last: a device that cannot must not keep packets from the programs of tc.
        let (acceleration, devices) = (desired.acceleration, &desired.devices);
        match self.accelerator.apply(&self.maps, acceleration, constants, devices) {
            Ok(accelerated) => report.accelerated = accelerated,
            Err(error) => report.not_accelerated = Some(error),
        }
        Ok(report)
    }

    /// Creates the tunnel device or what differs. A failure must not block the rest of the node: packets to pods of other
    /// nodes are dropped, and the next comparison tries again.
    fn ensure_tunnel(
        &mut self,
        nl: &mut Netlink,
        settings: Option<&TunnelSettings>,
        report: &mut Report,
    ) -> Option<devices::Link> {
        match tunnel::ensure(nl, settings, self.tunnel.as_ref()) {
            Ok(ensured) => {
                self.tunnel_failed = false;
                report.tunnel = settings.map(|settings| Ok(settings.device()));
                if ensured.as_ref().is_some_and(|ensured| ensured.created) {
                    self.attached
                        .retain(|place, _| Some(&*place.device) != settings.map(TunnelSettings::device));
                }
                self.tunnel = ensured.map(|ensured| ensured.link);
                self.tunnel.clone()
            }
            Err(error) => {
                self.tunnel_failed = true;
                report.tunnel = Some(Err(error));
                None
            }
        }
    }

    /// Creates the devices that add outer headers or what differs. Without one, packets that need it are dropped, and the
    /// next comparison tries again. Returns their indexes.
    fn ensure_ipip(
        &mut self,
        nl: &mut Netlink,
        settings: Option<&IpipSettings>,
        report: &mut Report,
    ) -> [u32; 2] {
        let ipip::Ensured { indexes, error } = ipip::ensure(nl, settings);
        report.ipip = settings.map(|_| error.map_or(Ok(()), Err));
        self.ipip = indexes;
        indexes
    }

    /// Returns the name of the devices that add outer headers if one is missing or changed, or can be created now after a
    /// failure; the next [`Controller::apply`] loads the programs with it.
    pub(crate) fn check_ipip(&mut self, nl: &mut Netlink) -> Option<String> {
        let settings = self.written.as_ref().and_then(|written| written.ipip.as_ref())?;
        let lost = ipip::ensure(nl, Some(settings)).indexes != self.ipip;
        lost.then(|| "devices of outer IP headers".to_owned())
    }

    /// Returns the name of the tunnel device if it is missing or changed, or can be created now after a failure; the next
    /// [`Controller::apply`] repairs it.
    pub(crate) fn check_tunnel(&mut self, nl: &mut Netlink) -> Result<Option<String>, DatapathError> {
        let settings = self.written.as_ref().and_then(|written| written.tunnel.as_ref());
        let Some(settings) = settings else { return Ok(None) };
        let lost = if self.tunnel_failed {
            tunnel::ensure(nl, Some(settings), self.tunnel.as_ref()).is_ok()
        } else {
            match &self.tunnel {
                Some(link) => tunnel::differs(nl, settings, link)?,
                None => true,
            }
        };
        Ok(lost.then(|| format!("tunnel device {}", settings.device())))
    }

    /// Whether rules of iptables mark the host's packets, so that nftables need not.
    pub(crate) fn is_host_marked_by_iptables(&self) -> bool {
        self.host_mark.as_ref().is_some_and(|mark| mark.is_set())
    }

    /// Installs the rule that marks the host's packets, unless it or one of iptables is installed. Called before programs are attached,
    /// since they classify packets without a mark as the world's; programs of older builds did not. Returns false if
    /// the kernel lacks support.
    fn mark_host_packets(&mut self) -> Result<bool, DatapathError> {
        if self.is_host_marked_by_iptables() {
            return Ok(true);
        }
        let marked = self.marked.map_or_else(host_mark::install, Ok)?;
        self.marked = Some(marked);
        Ok(marked)
    }

    /// Loads programs. Meanwhile the rule that marks the host's packets is installed, and the links that the programs
    /// will need are created: both wait for grace periods of the kernel, while verification computes.
    fn load(&mut self, constants: NodeConfig, places: &BTreeSet<Place>) -> Result<ProgramSet, DatapathError> {
        let (programs, marked) = std::thread::scope(|scope| {
            let new = places.iter().filter(|place| !self.attached.contains_key(place));
            let links = scope.spawn(|| device_links::reserve(self.maps.fs(), self.style, new));
            let is_needed = self.marked.is_none() && !self.is_host_marked_by_iptables();
            let mark = is_needed.then(|| scope.spawn(host_mark::install));
            let programs = ProgramSet::load(&self.maps, constants);
            if let Err(error) = joined(links) {
                // Attaching reports the error again.
                tracing::debug!(%error, "A link could not be created ahead");
            }
            (programs, mark.map(joined).transpose())
        });
        // An error is retried and reported by the caller, which installs the mark before it attaches.
        self.marked = self.marked.or(marked.unwrap_or_default());
        programs
    }

    /// Removes arrays of programs a second after they were replaced everywhere. Returns the time until the next call
    /// has work.
    pub(crate) fn retire(&mut self) -> Result<Option<Duration>, DatapathError> {
        let (Some(since), Some(programs)) = (self.replaced, self.datapath.programs()) else {
            return Ok(None);
        };
        if let Some(left) = GRACE.checked_sub(since.elapsed()).filter(|left| !left.is_zero()) {
            return Ok(Some(left));
        }
        programs.remove_others(self.maps.fs())?;
        // Maps of the previous layout that no program uses any more.
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

    /// Detaches programs from devices that do not face the network any more, and those of a previous agent.
    fn detach_others(&self, places: &BTreeSet<Place>, nl: &mut Netlink) -> Result<(), DatapathError> {
        let folder = |name: &str| name.replace('.', "-");
        for found in device_links::devices_with_links(self.maps.fs())? {
            if places.iter().any(|place| folder(&place.device) == found) {
                continue;
            }
            let link = nl.links()?.into_iter().find(|link| folder(&link.name) == found);
            device_links::detach_all(self.maps.fs(), self.style, &found, link.map(|link| link.index))?;
        }
        Ok(())
    }

    /// Detaches programs of the previous run from the egress of devices that need none any more.
    fn detach_egress(&self, desired: &Desired, places: &BTreeSet<Place>) -> Result<(), DatapathError> {
        let egress = desired.devices.iter();
        let egress = egress.map(|(name, device)| native(name, device, datapath_object::TO_NETDEV));
        egress
            .filter(|place| !places.contains(place))
            .try_for_each(|place| device_links::detach(self.maps.fs(), self.style, &place))
    }

    /// Compares the map entries that were written last and writes those that differ. Returns their descriptions.
    pub(crate) fn repair_entries(&self) -> Result<Vec<String>, DatapathError> {
        self.written.as_ref().map_or(Ok(Vec::new()), |written| self.write_entries(written))
    }

    /// Compares the programs on devices, and recreates missing pins. Removes programs that are not attached any more
    /// from the applied state, so that the next [`Controller::apply`] attaches them.
    pub(crate) fn check_places(&mut self) -> Result<LostPlaces, DatapathError> {
        let tc = Tc::new().step(|| "open a socket for tc filters".to_owned())?;
        let programs = self.datapath.programs().ok_or(DatapathError::NotReady)?;
        let (mut lost, mut report) = (BTreeSet::new(), LostPlaces::default());
        for (place, link) in &self.attached {
            let program = programs.id(place.program)?;
            if !device_links::is_attached(place, program, link.as_ref(), &tc)? {
                lost.insert(place.clone());
                report.programs.push(format!("program {}", place.filter()));
            } else if let Some(link) = link
                && device_links::pin_again(self.maps.fs(), place, link)?
            {
                report.pins.push(format!("link of {}", place.filter()));
            }
        }
        self.attached.retain(|place, _| !lost.contains(place));
        let (programs, pins) = self.accelerator.check(self.maps.fs())?;
        report.programs.extend(programs);
        report.pins.extend(pins);
        Ok(report)
    }

    /// Returns addresses of cilium_host that are missing; the next [`Controller::apply`] adds them.
    pub(crate) fn check_addresses(&mut self, nl: &mut Netlink) -> Result<Vec<String>, DatapathError> {
        let Some(settings) = &self.addressed else { return Ok(Vec::new()) };
        let Some(host) = nl.find_link(HOST_DEVICE)? else { return Ok(Vec::new()) };
        let missing = host::missing(nl, &host, settings)?;
        if !missing.is_empty() {
            self.addressed = None;
        }
        Ok(missing)
    }

    /// Writes entries of the host in `cilium_lxc` and of devices in `cilium_devices`. Returns descriptions of those
    /// that differed.
    fn write_entries(&self, desired: &Desired) -> Result<Vec<String>, DatapathError> {
        let addresses = write_addresses(&self.maps, &desired.addresses)?;
        let masquerade = write_masquerade(&self.maps, &desired.masquerade)?;
        Ok([addresses, write_devices(&self.maps, &desired.devices)?, masquerade].concat())
    }
}

/// Returns the result of a thread, or resumes its panic.
fn joined<R>(thread: std::thread::ScopedJoinHandle<'_, R>) -> R {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Writes the devices that face the network into `cilium_devices`. Returns descriptions of the changes.
fn write_devices(
    maps: &Maps,
    devices: &BTreeMap<String, NativeDevice>,
) -> Result<Vec<String>, DatapathError> {
    let step = || "write the device map".to_owned();
    let desired: BTreeMap<u32, DeviceValue> = devices.values().map(entry).collect();
    let map = maps.devices();
    let found = map.entries().step(step)?;
    let mut changed = Vec::new();
    for (ifindex, _) in found.iter().filter(|(ifindex, _)| !desired.contains_key(ifindex)) {
        map.delete(ifindex).step(step)?;
        changed.push(format!("cilium_devices: interface {ifindex}"));
    }
    for (ifindex, value) in desired {
        if !found.contains(&(ifindex, value)) {
            map.update(&ifindex, &value).step(step)?;
            changed.push(format!("cilium_devices: interface {ifindex}"));
        }
    }
    Ok(changed)
}

/// Writes masquerade addresses into `ep_masquerade`, if the node has it: programs read a new address with the next
/// packet. Returns descriptions of the changes.
fn write_masquerade(
    maps: &Maps,
    desired: &BTreeMap<u32, MasqueradeAddresses>,
) -> Result<Vec<String>, DatapathError> {
    let step = || "write the masquerade addresses".to_owned();
    let Some(map) = maps.masquerade()? else { return Ok(Vec::new()) };
    let found = map.entries().step(step)?;
    let mut changed = Vec::new();
    for (ifindex, row) in desired {
        if !found.contains(&(*ifindex, *row)) {
            map.update(ifindex, row).step(step)?;
            changed.push(masquerade_row(*ifindex));
        }
    }
    for (ifindex, _) in found.iter().filter(|(ifindex, _)| !desired.contains_key(ifindex)) {
        map.delete(ifindex).step(step)?;
        changed.push(masquerade_row(*ifindex));
    }
    Ok(changed)
}

/// Describes a row of `ep_masquerade`.
fn masquerade_row(ifindex: u32) -> String {
    match ifindex {
        DIRECT_ROUTING => format!("{MASQUERADE_MAP}: direct routing"),
        _ => format!("{MASQUERADE_MAP}: interface {ifindex}"),
    }
}

/// Writes the host's addresses into `cilium_lxc`. Returns descriptions of the changes.
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

fn entry(device: &NativeDevice) -> (u32, DeviceValue) {
    let l3 = u8::from(device.mac.is_none());
    let mac = device.mac.map_or(0, mac_word);
    (device.ifindex, DeviceValue { mac, l3, ..DeviceValue::default() })
}

/// Returns the place of a program on a device that faces the network.
fn native(name: &str, device: &NativeDevice, program: &'static str) -> Place {
    let egress = program == datapath_object::TO_NETDEV;
    Place { device: name.to_owned(), ifindex: device.ifindex, program, egress }
}

/// Returns the places of programs: packets to pods and to the host pass cilium_host and cilium_net, packets of the
/// network pass the devices, those of other nodes the tunnel.
fn places(
    host: &HostDevices,
    tunnel: Option<&devices::Link>,
    devices: &BTreeMap<String, NativeDevice>,
    has_egress: bool,
) -> BTreeSet<Place> {
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
    let ingress = devices.iter().map(|(name, device)| native(name, device, datapath_object::FROM_NETDEV));
    let egress = devices.iter().filter(|_| has_egress);
    let egress = egress.map(|(name, device)| native(name, device, datapath_object::TO_NETDEV));
    let overlay = tunnel.into_iter().flat_map(|tunnel| {
        [
            place(tunnel, datapath_object::FROM_OVERLAY, false),
            place(tunnel, datapath_object::TO_OVERLAY, true),
        ]
    });
    own.into_iter().chain(overlay).chain(ingress).chain(egress).collect()
}
