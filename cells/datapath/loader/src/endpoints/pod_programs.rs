//! The programs on pods' interfaces: attached to new interfaces, replaced on all of them after a load.
//!
//! With `enable-endpoint-routes` there is one for packets to the pod, too. It is attached before the one for packets from
//! the pod, since the latter, on any interface, leaves policy of the receiver to it; and it is removed after the routes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

use bpf::tc::Tc;
use bpf::{Direction, Link, unpin};
use datapath_abi::{EndpointConfig, ep_flag};
use datapath_api::{DatapathError, EndpointDatapath, Step};
use devices::{Netlink, TABLE_MAIN};
use ipnetwork::IpNetwork;
use maps::Maps;

use crate::endpoints::idle_socket::IdleSocket;
use crate::endpoints::lock_order::{Mutex, Rank, RwLock};
use crate::endpoints::pod_interface::{POD_INTERFACE_PREFIX, is_pod_interface};
use crate::endpoints::table::{EndpointTable, LockedEndpoint};
use crate::programs::set::ProgramSet;

/// A program of pods' interfaces, with the direction in which packets pass it.
#[derive(Clone, Copy, Debug)]
struct PodProgram {
    name: &'static str,
    direction: Direction,
}

/// Packets from a pod.
const FROM_POD: PodProgram =
    PodProgram { name: datapath_object::FROM_CONTAINER, direction: Direction::Ingress };
/// Packets to a pod by the route to it, only with `enable-endpoint-routes`.
const TO_POD: PodProgram = PodProgram { name: datapath_object::TO_CONTAINER, direction: Direction::Egress };

/// The folder of the BPF file system that is there while no pod has a program for packets to it: a start without endpoint routes
/// need not look at each interface for those of an earlier run then. Pinned links, as Cilium may leave them, are looked for.
const NO_PROGRAMS_TO_PODS: &str = "cilium/no_to_container";

fn marker_error(operation: &'static str, path: PathBuf, source: io::Error) -> DatapathError {
    let step = "note whether pods have programs for packets to them".to_owned();
    DatapathError::Kernel { step, source: bpf::Error::File { operation, path, source } }
}

/// Returns the programs of an endpoint's interface, in the order in which they are attached.
fn of_endpoint(programs: &ProgramSet) -> &'static [PodProgram] {
    if programs.config().endpoint_routes != 0 { &[TO_POD, FROM_POD] } else { &[FROM_POD] }
}

/// The programs in use, and the interfaces that have them.
#[derive(Debug)]
pub(crate) struct PodPrograms {
    maps: Arc<Maps>,
    /// Priority of tc filters.
    filter_priority: u16,
    /// The programs to attach; `None` before the first load. Read-locked while a program is attached: once a
    /// writer has published new programs, no thread attaches the old ones any more.
    current: RwLock<Option<Arc<ProgramSet>>>,
    /// Endpoints that [`PodPrograms::switch`] has processed, with their interface's index: the next attachment need not
    /// repeat the work.
    switched: Mutex<BTreeMap<u16, u32>>,
    /// For single interfaces.
    socket: IdleSocket<Tc>,
}

impl PodPrograms {
    /// Creates a set without programs.
    pub(crate) fn new(maps: Arc<Maps>, filter_priority: u16) -> PodPrograms {
        PodPrograms {
            maps,
            filter_priority,
            current: RwLock::new(Rank::Programs, None),
            switched: Mutex::new(Rank::State, BTreeMap::new()),
            socket: IdleSocket::new(),
        }
    }

    /// Returns the programs in use; `None` before the first load.
    pub(crate) fn current(&self) -> Option<Arc<ProgramSet>> {
        self.current.read().clone()
    }

    /// Replaces the programs in use on every pod's interface, each endpoint whole. Returns the number of switched
    /// interfaces. Continues after a failure and returns [`DatapathError::NotSwitched`] at the end; until another call
    /// succeeds, some interfaces may run the previous programs. Any other error means that no program for packets from
    /// pods was replaced.
    pub(crate) fn switch(
        &self,
        table: &EndpointTable,
        programs: Arc<ProgramSet>,
        nl: &mut Netlink,
    ) -> Result<usize, DatapathError> {
        *self.current.write() = Some(programs.clone());

        let all = table.all();
        let endpoints: BTreeMap<u32, u16> =
            all.iter().filter(|c| c.flags & ep_flag::LIVE != 0).map(|c| (c.ifindex, c.id as u16)).collect();
        let any_endpoint: BTreeSet<u32> = all.iter().map(|config| config.ifindex).collect();
        let tc = tc()?;
        let (mut switched, mut failed, mut first_error) = (0, 0, None);
        let mut of_endpoints = BTreeMap::new();
        let links = nl.links()?;
        if programs.config().endpoint_routes != 0 {
            let marker = self.maps.fs().root().join(NO_PROGRAMS_TO_PODS);
            match std::fs::remove_dir(&marker) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(marker_error("remove folder", marker, error));
                }
                _ => {}
            }
            // All of them first: the programs below send packets to any pod without its policy.
            for link in &links {
                if let Some(id) = endpoints.get(&link.index) {
                    self.attach_one(TO_POD, &programs, &tc, link.index, &link.name, Some(*id))?;
                }
            }
        }
        for link in links {
            let endpoint = endpoints.get(&link.index).copied();
            if endpoint.is_none() && !is_pod_interface(&link) {
                if !any_endpoint.contains(&link.index)
                    && let Err(error) = self.release(&tc, &link)
                {
                    failed += 1;
                    first_error.get_or_insert(error);
                }
                continue;
            }
            let attached = self.attach_one(FROM_POD, &programs, &tc, link.index, &link.name, endpoint);
            let attached = attached.and_then(|attached| {
                let Some(id) = endpoint.filter(|_| attached) else { return Ok(attached) };
                let endpoint = table.lock(id);
                // It may have been deleted meanwhile.
                if endpoint.config().id == u32::from(id) {
                    self.write_policy_call(&programs, id)?;
                }
                Ok(attached)
            });
            match attached {
                Ok(true) => {
                    switched += 1;
                    of_endpoints.extend(endpoint.map(|id| (id, link.index)));
                }
                Ok(false) => {}
                Err(error) => {
                    failed += 1;
                    first_error.get_or_insert(error);
                }
            }
        }
        *self.switched.lock() = of_endpoints;
        match first_error {
            None => Ok(switched),
            Some(source) => Err(DatapathError::NotSwitched {
                failed,
                interfaces: switched + failed,
                source: Box::new(source),
            }),
        }
    }

    /// Attaches the program to the interface of an endpoint after its settings were written. `unchanged` if the
    /// settings were the same before. Returns false if the interface is gone.
    pub(crate) fn attach(
        &self,
        locked: &LockedEndpoint<'_>,
        endpoint: &EndpointDatapath,
        unchanged: bool,
    ) -> Result<bool, DatapathError> {
        let current = self.current.read();
        let programs = current.as_ref().ok_or(DatapathError::NotReady)?;
        let id = locked.id();
        self.write_policy_call(programs, id)?;
        if self.switched.lock().remove(&id) == Some(endpoint.ifindex) && unchanged {
            return Ok(true);
        }
        self.socket.with(tc, |tc| self.attach_to(programs, tc, endpoint.ifindex, &endpoint.ifname, Some(id)))
    }

    /// Attaches the program to the interface of a pod that is not announced yet: its packets drop with 203 until it is.
    /// False if there is no such interface, if it has the program, or before the first load.
    pub(crate) fn guard(&self, ifindex: u32, ifname: &str) -> Result<bool, DatapathError> {
        let current = self.current.read();
        let Some(programs) = current.as_ref() else { return Ok(false) };
        let name = filter_name(datapath_object::FROM_CONTAINER, ifname);
        let program = programs.id(datapath_object::FROM_CONTAINER)?;
        let guards = |filter: &bpf::tc::Filter| filter.name == name && filter.program == program;
        self.socket.with(tc, |tc| {
            let filters = tc.filters(ifindex, Direction::Ingress);
            if filters.is_ok_and(|filters| filters.iter().any(guards)) {
                return Ok(false);
            }
            self.attach_to(programs, tc, ifindex, ifname, None)
        })
    }

    /// Reattaches the program to interfaces of endpoints from which it was removed (`tc qdisc del`) or where another
    /// one replaced it. Returns descriptions of the repairs. Continues after a failure and returns the first error at
    /// the end.
    pub(crate) fn reattach(
        &self,
        table: &EndpointTable,
        nl: &mut Netlink,
    ) -> Result<Vec<String>, DatapathError> {
        let Some(programs) = self.current() else { return Ok(Vec::new()) };
        let tc = tc()?;
        let links: BTreeMap<u32, String> = nl.links()?.into_iter().map(|l| (l.index, l.name)).collect();
        let mut expected = Vec::new();
        for program in of_endpoint(&programs) {
            expected.push((*program, programs.id(program.name)?));
        }
        let (mut repairs, mut first_error) = (Vec::new(), None);
        for config in table.all().into_iter().filter(|config| config.flags & ep_flag::LIVE != 0) {
            let Some(name) = links.get(&config.ifindex) else { continue };
            for expected in &expected {
                match self.reattach_one(table, *expected, &tc, &config, name) {
                    Ok(true) => repairs.push(match expected.0.direction {
                        Direction::Ingress => format!("program of endpoint {} on {name}", config.id),
                        Direction::Egress => format!("program to endpoint {} on {name}", config.id),
                    }),
                    Ok(false) => {}
                    Err(error) => drop(first_error.get_or_insert(error)),
                }
            }
        }
        first_error.map_or(Ok(repairs), Err)
    }

    /// Attaches a program, given with its id, to one endpoint's interface if it is missing there. Returns whether it was
    /// missing.
    fn reattach_one(
        &self,
        table: &EndpointTable,
        expected: (PodProgram, u32),
        tc: &Tc,
        config: &EndpointConfig,
        ifname: &str,
    ) -> Result<bool, DatapathError> {
        let (id, ifindex) = (config.id as u16, config.ifindex);
        // Check without the lock first: a round without repairs takes no lock.
        if self.is_attached(tc, ifindex, ifname, id, expected)? {
            return Ok(false);
        }
        let endpoint = table.lock(id);
        let current = self.current.read();
        let Some(programs) = current.as_ref() else { return Ok(false) };
        // The endpoint may have been deleted, or be in creation.
        Ok(endpoint.config() == *config
            && !self.is_attached(tc, ifindex, ifname, id, expected)?
            && self.attach_one(expected.0, programs, tc, ifindex, ifname, Some(id))?)
    }

    /// Whether a program, given with its id, processes an endpoint's packets: by a link taken over from Cilium, which runs
    /// before filters, or by a filter.
    fn is_attached(
        &self,
        tc: &Tc,
        ifindex: u32,
        ifname: &str,
        id: u16,
        (PodProgram { name, direction }, program): (PodProgram, u32),
    ) -> Result<bool, DatapathError> {
        let link = Link::open(&self.maps.fs().endpoint_links(id).join(name)).and_then(|link| link.info());
        if let Ok(info) = link
            && info.ifindex == Some(ifindex)
        {
            return Ok(info.program == program);
        }
        let filters = match tc.filters(ifindex, direction) {
            // The interface is gone; its endpoint is updated with the next change of the table of devices.
            Err(e) if e.is_not_found() => return Ok(true),
            found => found.step(|| format!("list filters of {ifname}"))?,
        };
        // An interface that was renamed keeps the filter's name.
        let prefix = filter_name(name, "");
        Ok(filters.iter().any(|found| found.program == program && found.name.starts_with(&prefix)))
    }

    /// Attaches the programs of an endpoint to its interface; false if the interface is gone. An interface without an
    /// endpoint gets the one that drops its packets.
    fn attach_to(
        &self,
        programs: &ProgramSet,
        tc: &Tc,
        ifindex: u32,
        ifname: &str,
        endpoint: Option<u16>,
    ) -> Result<bool, DatapathError> {
        let all = if endpoint.is_some() { of_endpoint(programs) } else { &[FROM_POD] };
        for program in all {
            if !self.attach_one(*program, programs, tc, ifindex, ifname, endpoint)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Attaches one program to an interface; false if the interface is gone. An endpoint taken over from Cilium keeps
    /// its pinned tcx link.
    fn attach_one(
        &self,
        PodProgram { name, direction }: PodProgram,
        programs: &ProgramSet,
        tc: &Tc,
        ifindex: u32,
        ifname: &str,
        endpoint: Option<u16>,
    ) -> Result<bool, DatapathError> {
        let program = programs.program(name)?;
        if let Some(id) = endpoint {
            let pin = self.maps.fs().endpoint_links(id).join(name);
            let link = Link::open(&pin).ok();
            if link.is_some_and(|l| {
                l.info().is_ok_and(|i| i.ifindex == Some(ifindex)) && l.update(program).is_ok()
            }) {
                return Ok(true);
            }
        }
        let filter = filter_name(name, ifname);
        match tc.attach_with_clsact(ifindex, direction, self.filter_priority, &filter, program) {
            Ok(()) => Ok(true),
            Err(e) if e.is_not_found() => Ok(false),
            Err(e) => Err(e).step(|| format!("attach {filter}")),
        }
    }

    /// Removes the programs for packets to pods that a run with endpoint routes has left, and before them the routes to
    /// the pods by their interfaces: packets by these would reach the pods without policy. Returns the number of
    /// interfaces. Call it when no program redirects packets to those.
    pub(crate) fn detach_to_pods(
        &self,
        table: &EndpointTable,
        nl: &mut Netlink,
    ) -> Result<usize, DatapathError> {
        let fs = self.maps.fs();
        let pin = |config: &EndpointConfig| fs.endpoint_links(config.id as u16).join(TO_POD.name);
        let live: Vec<EndpointConfig> =
            table.all().into_iter().filter(|config| config.flags & ep_flag::LIVE != 0).collect();
        let marker = fs.root().join(NO_PROGRAMS_TO_PODS);
        if marker.exists() && !live.iter().any(|config| pin(config).exists()) {
            return Ok(0);
        }
        let tc = tc()?;
        let mut left = BTreeMap::new();
        for config in live {
            let pin = pin(&config);
            let mut filters = match tc.filters(config.ifindex, TO_POD.direction) {
                Err(e) if e.is_not_found() => continue,
                found => found.step(|| format!("list filters of interface {}", config.ifindex))?,
            };
            filters.retain(|filter| filter.name.starts_with(&filter_name(TO_POD.name, "")));
            if !filters.is_empty() || pin.exists() {
                left.insert(config.ifindex, (config, filters, pin));
            }
        }
        let routes = if left.is_empty() { Vec::new() } else { nl.routes()? };
        for route in routes.iter().filter(|route| route.key.table == TABLE_MAIN) {
            let Some((config, ..)) = left.get(&route.key.link_index) else { continue };
            let mut addresses = EndpointDatapath::from_config(config).addresses();
            if addresses.any(|ip| IpNetwork::from(ip) == route.key.dst) {
                match nl.delete_listed_route(route) {
                    Err(error) if !error.is_not_found() => return Err(error.into()),
                    _ => {}
                }
            }
        }
        for (ifindex, (config, filters, pin)) in &left {
            let step = || format!("detach the program to endpoint {}", config.id);
            for filter in filters {
                tc.detach(*ifindex, TO_POD.direction, filter.priority).step(step)?;
            }
            unpin(pin).step(step)?;
        }
        std::fs::create_dir_all(&marker).map_err(|error| marker_error("create folder", marker, error))?;
        Ok(left.len())
    }

    /// Removes the program from a veth that is not a pod's by its name. Earlier builds guarded every veth with the name
    /// prefix `lxc`, including those of LXC.
    fn release(&self, tc: &Tc, link: &devices::Link) -> Result<(), DatapathError> {
        if link.kind != "veth" || !link.name.starts_with(POD_INTERFACE_PREFIX) {
            return Ok(());
        }
        let prefix = filter_name(datapath_object::FROM_CONTAINER, "");
        let step = || format!("detach the program from {}", link.name);
        let filters = match tc.filters(link.index, Direction::Ingress) {
            Err(e) if e.is_not_found() => return Ok(()),
            filters => filters.step(step)?,
        };
        for filter in filters.iter().filter(|filter| filter.name.starts_with(&prefix)) {
            tc.detach(link.index, Direction::Ingress, filter.priority).step(step)?;
        }
        Ok(())
    }

    /// Whether `cilium_call_policy` has an entry for the endpoint: the array ends before the last id. Only programs of
    /// other loaders call through it.
    fn has_policy_call(&self, id: u16) -> bool {
        u32::from(id) < self.maps.call_policy().raw().layout().max_entries
    }

    /// Writes the policy program into the endpoint's entry of `cilium_call_policy`.
    fn write_policy_call(&self, programs: &ProgramSet, id: u16) -> Result<(), DatapathError> {
        match programs.program(datapath_object::LXC_POLICY) {
            Ok(policy) if self.has_policy_call(id) => {
                let written = self.maps.call_policy().set(id.into(), policy);
                written.step(|| format!("endpoint {id}: enter its policy program"))
            }
            _ => Ok(()),
        }
    }

    /// Removes the endpoint's entry of `cilium_call_policy`.
    pub(crate) fn remove_policy_call(&self, endpoint: &LockedEndpoint<'_>) -> Result<(), DatapathError> {
        let id = endpoint.id();
        if self.has_policy_call(id) {
            let removed = self.maps.call_policy().unset(id.into());
            removed.step(|| format!("endpoint {id}: remove its policy program"))?;
        }
        Ok(())
    }
}

fn tc() -> Result<Tc, DatapathError> {
    Tc::new().step(|| "open a socket for tc filters".to_owned())
}

fn filter_name(program: &str, interface: &str) -> String {
    format!("{program}-{interface}")
}
