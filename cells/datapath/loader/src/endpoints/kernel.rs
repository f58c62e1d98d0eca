//! The datapath in the kernel: rows, pins and filters of endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use bpf::tc::Tc;
use bpf::{Direction, Link, Map, RawMap, unpin};
use datapath_abi::{EndpointConfig, PolicyEntry, PolicyKey, ep_flag, identity};
use devices::Netlink;
use futures::future::{BoxFuture, FutureExt};
use maps::{Maps, policy_name};
use tokio::sync::watch;

use crate::endpoints::conntrack_purge::ConntrackPurge;
use crate::endpoints::detached_interfaces::DetachedInterfaces;
use crate::endpoints::policy;
use crate::endpoints::pool::{PolicyMap, PolicyPool};
use crate::programs::set::ProgramSet;
use datapath_api::{Datapath, EndpointDatapath, PolicyWrite, Pruned};
use datapath_api::{DatapathError, Step};

/// How names of pods' host-side interfaces begin.
pub const POD_INTERFACE_PREFIX: &str = "lxc";
/// How many hexadecimal digits follow: the first of a digest of container and interface.
pub(crate) const POD_INTERFACE_DIGITS: usize = 12;

/// The datapath settings that a node's users choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelOptions {
    /// Priority of tc filters (`bpf-filter-priority`).
    pub filter_priority: u16,
    /// Whether programs judge ICMP messages by their type (`enable-icmp-rules`).
    pub icmp_rules: bool,
}

/// Endpoints in the kernel's maps, their programs on their interfaces.
#[derive(Debug)]
pub struct KernelDatapath {
    maps: Arc<Maps>,
    options: KernelOptions,
    pub(crate) pool: PolicyPool,
    conntrack_purge: ConntrackPurge,
    detached_interfaces: DetachedInterfaces,
    /// Settings rows as they were written last: who overwrites one in the kernel does not change what is wanted.
    settings: Mutex<BTreeMap<u16, EndpointConfig>>,
    /// The programs that new attachments get.
    programs: RwLock<Option<Arc<ProgramSet>>>,
    /// Held for reading while an endpoint is attached, for writing for a moment between publishing new programs and
    /// replacing the old ones: after that moment nobody attaches the old ones any more.
    pub(crate) attaching: RwLock<()>,
    /// Endpoints whose interface got the programs in use when these replaced others, with the interface's number: the first
    /// to make such an endpoint again need not do it a second time.
    switched: Mutex<BTreeMap<u16, u32>>,
    /// Held while settings and policy map of an endpoint change, by its id: those who attach it and those who write its
    /// policy do not know of each other.
    changing: [Mutex<()>; 64],
    ready: watch::Sender<bool>,
    pub(crate) host_endpoint: watch::Sender<u16>,
}

impl KernelDatapath {
    /// A datapath over these maps, which need not be open yet.
    pub fn new(maps: Arc<Maps>, options: KernelOptions) -> KernelDatapath {
        KernelDatapath {
            pool: PolicyPool::new(maps.clone()),
            maps,
            options,
            conntrack_purge: ConntrackPurge::default(),
            detached_interfaces: DetachedInterfaces::default(),
            settings: Mutex::default(),
            programs: RwLock::new(None),
            attaching: RwLock::new(()),
            switched: Mutex::default(),
            changing: [const { Mutex::new(()) }; 64],
            ready: watch::Sender::new(false),
            host_endpoint: watch::Sender::new(0),
        }
    }

    pub(crate) fn maps(&self) -> &Maps {
        &self.maps
    }

    /// The pool of policy maps, for those who tend it.
    pub fn pool(&self) -> &PolicyPool {
        &self.pool
    }

    /// Endpoints that the datapath has to forget, for those who see to it.
    pub fn conntrack_purge(&self) -> &ConntrackPurge {
        &self.conntrack_purge
    }

    pub(crate) fn detached_interfaces(&self) -> &DetachedInterfaces {
        &self.detached_interfaces
    }

    /// The host endpoint's id, 0 while there is none, and its changes.
    pub fn host_endpoint(&self) -> watch::Receiver<u16> {
        self.host_endpoint.subscribe()
    }

    /// The programs in use; `None` before the first load.
    pub fn programs(&self) -> Option<Arc<ProgramSet>> {
        self.programs.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says that everything is in place: [`Datapath::ready`] resolves.
    pub fn set_ready(&self) {
        self.ready.send_replace(true);
    }

    /// Makes these programs the ones in use: attaches them to every pod's interface in place of the old ones, each
    /// endpoint switches whole. Returns how many interfaces were switched. Goes on where one fails and returns
    /// [`DatapathError::NotSwitched`] at the end; until a further call succeeds, programs of before may run.
    pub fn switch(&self, programs: Arc<ProgramSet>, nl: &mut Netlink) -> Result<usize, DatapathError> {
        *self.programs.write().unwrap_or_else(PoisonError::into_inner) = Some(programs.clone());
        drop(self.attaching.write().unwrap_or_else(PoisonError::into_inner));

        let rows = self.rows();
        let endpoints: BTreeMap<u32, u16> =
            rows.iter().filter(|r| r.flags & ep_flag::LIVE != 0).map(|r| (r.ifindex, r.id as u16)).collect();
        let any_endpoint: BTreeSet<u32> = rows.iter().map(|row| row.ifindex).collect();
        let tc = Tc::new().step(|| "open a socket for tc filters".to_owned())?;
        let (mut switched, mut failed, mut first_error) = (0, 0, None);
        let mut of_endpoints = BTreeMap::new();
        for link in nl.links()? {
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
            let attached =
                self.attach_program(&programs, &tc, link.index, &link.name, endpoint).and_then(|attached| {
                    let Some(id) = endpoint.filter(|_| attached) else { return Ok(attached) };
                    // It may have been detached since.
                    let _changing = self.change(id);
                    if self.row(id).id == u32::from(id) {
                        self.enter_policy_call(&programs, id)?;
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
        *self.switched() = of_endpoints;
        match first_error {
            None => Ok(switched),
            Some(source) => Err(DatapathError::NotSwitched {
                failed,
                interfaces: switched + failed,
                source: Box::new(source),
            }),
        }
    }

    fn switched(&self) -> MutexGuard<'_, BTreeMap<u16, u32>> {
        self.switched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches the program to the interface of a pod that no endpoint has asked for yet: its packets drop with 203 until
    /// one does. False if there is no such interface, or no program yet.
    pub fn guard(&self, ifindex: u32, ifname: &str) -> Result<bool, DatapathError> {
        let Some(programs) = self.programs() else { return Ok(false) };
        let _attaching = self.attaching.read().unwrap_or_else(PoisonError::into_inner);
        let tc = Tc::new().step(|| "open a socket for tc filters".to_owned())?;
        let name = filter_name(datapath_object::FROM_CONTAINER, ifname);
        let program = programs.id(datapath_object::FROM_CONTAINER)?;
        let filters = tc.filters(ifindex, Direction::Ingress);
        let guards = |filter: &bpf::tc::Filter| filter.name == name && filter.program == program;
        if filters.is_ok_and(|filters| filters.iter().any(guards)) {
            return Ok(false);
        }
        self.attach_program(&programs, &tc, ifindex, ifname, None)
    }

    /// Removes the program from a veth that is of no pod by its name: earlier builds took every one whose name begins with
    /// `lxc` for a pod's, LXC's among them.
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

    /// Puts the program on an interface; false if the interface is gone. An endpoint taken over from Cilium keeps its
    /// pinned tcx link.
    pub(crate) fn attach_program(
        &self,
        programs: &ProgramSet,
        tc: &Tc,
        ifindex: u32,
        ifname: &str,
        endpoint: Option<u16>,
    ) -> Result<bool, DatapathError> {
        let name = datapath_object::FROM_CONTAINER;
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
        let priority = self.options.filter_priority;
        match tc.attach_with_clsact(ifindex, Direction::Ingress, priority, &filter, program) {
            Ok(()) => Ok(true),
            Err(e) if e.is_not_found() => Ok(false),
            Err(e) => Err(e).step(|| format!("attach {filter}")),
        }
    }

    fn settings(&self) -> MutexGuard<'_, BTreeMap<u16, EndpointConfig>> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Settings rows in use, by id.
    pub(crate) fn rows(&self) -> Vec<EndpointConfig> {
        self.settings().values().copied().collect()
    }

    /// The settings row of an endpoint; all zero if there is none.
    pub(crate) fn row(&self, id: u16) -> EndpointConfig {
        self.settings().get(&id).copied().unwrap_or_default()
    }

    /// Writes a settings row, all zero for none.
    pub(crate) fn write_row(&self, id: u16, row: &EndpointConfig) -> bpf::Result<()> {
        self.maps.ep_config().update(&id.into(), row)?;
        self.note_rows([(id, *row)]);
        Ok(())
    }

    /// These rows are what the kernel has.
    pub(crate) fn note_rows(&self, rows: impl IntoIterator<Item = (u16, EndpointConfig)>) {
        let mut settings = self.settings();
        for (id, row) in rows {
            match row.id {
                0 => drop(settings.remove(&id)),
                _ => drop(settings.insert(id, row)),
            }
        }
    }

    /// The slot of the endpoint's policy map, an empty one from the pool if it has none, with its pin.
    fn policy(&self, id: u16, old: &EndpointConfig) -> Result<u32, DatapathError> {
        if old.id != 0
            && old.policy_slot != 0
            && let Some(map) = self.pool.map(old.policy_slot)?
        {
            self.pin_policy(id, &map)?;
            return Ok(old.policy_slot);
        }
        let (slot, map) = self.pool.take()?;
        if let Err(e) = self.note_id(id, slot).and_then(|()| self.pin_policy(id, &map)) {
            self.pool.give_back(slot);
            return Err(e);
        }
        Ok(slot)
    }

    /// Gives the slot from [`KernelDatapath::policy`] back after a failure, unless a settings row names it by now.
    fn release_policy(&self, id: u16, slot: u32) {
        let row = self.row(id);
        if row.policy_slot == slot {
            return;
        }
        if row.id == 0 {
            let forgotten =
                unpin(&self.maps.path(&policy_name(id))).and(self.maps.ep_ids().delete(&id.into()));
            if let Err(error) = forgotten {
                tracing::debug!(endpointID = id, %error, "The next prune removes names of the endpoint");
            }
        }
        self.pool.give_back(slot);
    }

    /// Writes the id into the list of ids, before anything else of the endpoint.
    pub(crate) fn note_id(&self, id: u16, slot: u32) -> Result<(), DatapathError> {
        self.maps.ep_ids().update(&id.into(), &slot).step(|| format!("endpoint {id}: note its id"))
    }

    pub(crate) fn pin_policy(&self, id: u16, map: &PolicyMap) -> Result<(), DatapathError> {
        let path = self.maps.path(&policy_name(id));
        match map.pin(&path) {
            Err(e) if e.is_existing() => {
                if RawMap::open(&path).is_ok_and(|old| old.id() == map.raw().id()) {
                    return Ok(());
                }
                self.maps.fs().replace_pin(&path, |pending| map.pin(pending))
            }
            other => other,
        }
        .step(|| format!("endpoint {id}: pin its policy map"))
    }

    /// The map that has the row of an interface.
    pub(crate) fn by_interface(&self, ifindex: u32) -> &Map<u32, u32> {
        let low = ifindex < datapath_abi::EP_CONFIG_ENTRIES;
        if low { self.maps.ep_by_ifindex() } else { self.maps.ep_by_ifindex_hi() }
    }

    pub(crate) fn write_interface(&self, ifindex: u32, id: u16) -> Result<(), DatapathError> {
        let written = self.by_interface(ifindex).update(&ifindex, &id.into());
        written.step(|| format!("endpoint {id}: write interface {ifindex}"))
    }

    /// Removes the row of an interface if it is still this endpoint's.
    pub(crate) fn remove_interface(&self, ifindex: u32, id: u16) -> Result<(), DatapathError> {
        if self.endpoint_at(ifindex)? != Some(id.into()) {
            return Ok(());
        }
        self.clear_interface(ifindex).step(|| format!("endpoint {id}: remove interface {ifindex}"))
    }

    /// Removes the owner of an interface.
    pub(crate) fn clear_interface(&self, ifindex: u32) -> bpf::Result<()> {
        let map = self.by_interface(ifindex);
        // Rows of an array cannot be deleted.
        if ifindex < datapath_abi::EP_CONFIG_ENTRIES {
            map.update(&ifindex, &0)
        } else {
            map.delete(&ifindex).map(drop)
        }
    }

    pub(crate) fn write_addresses(&self, endpoint: &EndpointDatapath) -> Result<(), DatapathError> {
        for (key, info) in endpoint.lxc_rows() {
            self.maps
                .lxc()
                .update(&key, &info)
                .step(|| format!("endpoint {}: write addresses", endpoint.id))?;
        }
        Ok(())
    }

    /// Removes the rows of addresses that are still this endpoint's.
    fn remove_addresses(&self, endpoint: &EndpointDatapath) -> Result<(), DatapathError> {
        let step = || format!("endpoint {}: remove addresses", endpoint.id);
        for (key, _) in endpoint.lxc_rows() {
            if self.maps.lxc().lookup(&key).step(step)?.is_some_and(|row| row.lxc_id == endpoint.id) {
                self.maps.lxc().delete(&key).step(step)?;
            }
        }
        Ok(())
    }

    pub(crate) fn change(&self, id: u16) -> MutexGuard<'_, ()> {
        let lock = &self.changing[usize::from(id) % self.changing.len()];
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `cilium_call_policy` has a place for the endpoint: it ends before the last number. Only programs of
    /// another origin look there.
    fn has_policy_call(&self, id: u16) -> bool {
        u32::from(id) < self.maps.call_policy().raw().layout().max_entries
    }

    /// Puts the policy program into the endpoint's place of `cilium_call_policy`.
    fn enter_policy_call(&self, programs: &ProgramSet, id: u16) -> Result<(), DatapathError> {
        match programs.program(datapath_object::LXC_POLICY) {
            Ok(policy) if self.has_policy_call(id) => {
                let entered = self.maps.call_policy().set(id.into(), policy);
                entered.step(|| format!("endpoint {id}: enter its policy program"))
            }
            _ => Ok(()),
        }
    }

    fn check_ready(&self, id: u16) -> Result<Arc<ProgramSet>, DatapathError> {
        if id == 0 {
            return Err(DatapathError::InvalidId { id });
        }
        self.programs().filter(|_| *self.ready.borrow()).ok_or(DatapathError::NotReady)
    }
}

impl Datapath for KernelDatapath {
    fn ready(&self) -> BoxFuture<'static, ()> {
        let mut ready = self.ready.subscribe();
        // An error means that the datapath is gone: nobody can call it then.
        async move { drop(ready.wait_for(|ready| *ready).await) }.boxed()
    }

    fn attach(&self, endpoint: &EndpointDatapath) -> Result<(), DatapathError> {
        let id = endpoint.id;
        self.check_ready(id)?;
        let _changing = self.change(id);
        let old = self.row(id);
        let slot = self.policy(id, &old)?;

        self.detached_interfaces.forget(id);
        let config = endpoint.config(slot);
        if old != config {
            let step = || format!("endpoint {id}: write settings");
            // A row is copied in pieces: no reader may see half an old and half a new owner. Another identity of the
            // same owner is one aligned word, which is copied whole: no packet has to drop meanwhile.
            let written = match old.flags & ep_flag::LIVE != 0 && old.ifindex != config.ifindex {
                true => self.write_row(id, &EndpointConfig::default()),
                false => Ok(()),
            };
            if let Err(error) = written.and_then(|()| self.write_row(id, &config)).step(step) {
                self.release_policy(id, slot);
                return Err(error);
            }
        }
        let before = EndpointDatapath::from_config(&old);
        if old.id != 0 && old.ifindex != config.ifindex {
            self.remove_interface(old.ifindex, id)?;
        }
        self.write_interface(config.ifindex, id)?;
        {
            let _attaching = self.attaching.read().unwrap_or_else(PoisonError::into_inner);
            let programs = self.programs().ok_or(DatapathError::NotReady)?;
            self.enter_policy_call(&programs, id)?;
            let switched = self.switched().remove(&id) == Some(config.ifindex) && old == config;
            let attached = switched || {
                let tc = Tc::new().step(|| "open a socket for tc filters".to_owned())?;
                self.attach_program(&programs, &tc, endpoint.ifindex, &endpoint.ifname, Some(id))?
            };
            if !attached {
                self.retire(id, &config)?;
                let EndpointDatapath { id, ifindex, ifname, .. } = endpoint.clone();
                return Err(DatapathError::NoInterface { id, ifindex, ifname });
            }
        }
        if old.id != 0 && (before.ipv4, before.ipv6) != (endpoint.ipv4, endpoint.ipv6) {
            self.remove_addresses(&before)?;
            let left = before.addresses().filter(|ip| !endpoint.addresses().any(|own| own == *ip));
            self.conntrack_purge.add_addresses(left);
        }
        self.conntrack_purge.purge_before_reuse(&self.maps, endpoint.addresses())?;
        self.write_addresses(endpoint)
    }

    fn up(&self, endpoint: &EndpointDatapath) -> Result<(), DatapathError> {
        let mut nl = Netlink::open()?;
        nl.set_link_up(endpoint.ifindex, true).map_err(|e| {
            if e.is_not_found() {
                let EndpointDatapath { id, ifindex, ifname, .. } = endpoint.clone();
                DatapathError::NoInterface { id, ifindex, ifname }
            } else {
                e.into()
            }
        })
    }

    fn detach(&self, id: u16) -> Result<bool, DatapathError> {
        self.check_ready(id)?;
        let _changing = self.change(id);
        self.detached_interfaces.forget(id);
        let old = self.row(id);
        // Only the settings row knows the interface: behind a kill in between nobody would find what leads to it.
        if old.ifindex != 0 {
            self.remove_interface(old.ifindex, id)?;
        }
        let step = || format!("endpoint {id}: remove settings");
        self.write_row(id, &EndpointConfig::default()).step(step)?;
        self.remove_addresses(&EndpointDatapath::from_config(&old))?;
        if self.has_policy_call(id) {
            self.maps
                .call_policy()
                .unset(id.into())
                .step(|| format!("endpoint {id}: remove its policy program"))?;
        }
        let pin = self.maps.path(&policy_name(id));
        unpin(&pin).step(|| format!("endpoint {id}: remove its policy pin"))?;
        self.maps.ep_ids().delete(&id.into()).step(|| format!("endpoint {id}: forget its id"))?;
        self.pool.give_back(old.policy_slot);
        self.conntrack_purge.add_addresses(EndpointDatapath::from_config(&old).addresses());
        self.conntrack_purge.add_endpoint(id);
        Ok(old.id != 0)
    }

    fn expect_host(&self, id: u16) {
        self.host_endpoint.send_if_modified(|current| std::mem::replace(current, id) != id);
    }

    fn attach_host(&self, id: u16) -> Result<(), DatapathError> {
        if id == 0 {
            return Err(DatapathError::InvalidId { id });
        }
        let _changing = self.change(id);
        let old = self.row(id);
        let policy_slot = self.policy(id, &old)?;
        let row = EndpointConfig {
            id: id.into(),
            identity: identity::HOST,
            policy_slot,
            ..EndpointConfig::default()
        };
        let allowed = self.pool.map(policy_slot).and_then(|map| match map {
            Some(map) => policy::allow_all(&map, id),
            None => Ok(()),
        });
        let step = || format!("host endpoint {id}: write settings");
        if let Err(error) = allowed.and_then(|()| self.write_row(id, &row).step(step)) {
            self.release_policy(id, policy_slot);
            return Err(error);
        }
        self.expect_host(id);
        Ok(())
    }

    fn policy_rows(&self, id: u16) -> Result<Vec<(PolicyKey, PolicyEntry)>, DatapathError> {
        let _changing = self.change(id);
        policy::rows(self, id)
    }

    fn write_policy(&self, id: u16, writes: &[PolicyWrite]) -> Result<(), DatapathError> {
        let _changing = self.change(id);
        policy::write(self, id, writes)
    }

    fn swap_policy(&self, id: u16, rows: &[(PolicyKey, PolicyEntry)]) -> Result<(), DatapathError> {
        let _changing = self.change(id);
        policy::swap(self, id, rows)
    }

    fn policy_capacity(&self) -> usize {
        self.maps.policy_spec(0).layout.max_entries as usize
    }

    fn icmp_rules(&self) -> bool {
        self.options.icmp_rules
    }

    fn restored(&self) -> Result<Vec<EndpointDatapath>, DatapathError> {
        let live = self.rows().into_iter().filter(|row| row.flags & ep_flag::LIVE != 0);
        Ok(live.map(|row| EndpointDatapath::from_config(&row)).collect())
    }

    fn prune(&self, known: &BTreeSet<u16>) -> Result<Pruned, DatapathError> {
        let unknown: Vec<u16> =
            self.rows().into_iter().map(|row| row.id as u16).filter(|id| !known.contains(id)).collect();
        for id in &unknown {
            self.detach(*id)?;
        }
        self.conntrack_purge.request_full_scan();
        Ok(Pruned { endpoints: unknown, leftovers: self.sweep_leftovers(known)? })
    }
}

pub(crate) fn filter_name(program: &str, interface: &str) -> String {
    format!("{program}-{interface}")
}

/// Whether a link is named as CNI plugins (Cilium's and ours) name the host side of a pod: `lxc` and 12 hexadecimal digits.
/// Cilium's gives it no other sign before it announces the endpoint, so another veth of such a name counts as one.
pub fn is_pod_interface(link: &devices::Link) -> bool {
    let digits = link.name.strip_prefix(POD_INTERFACE_PREFIX).unwrap_or_default();
    link.kind == "veth"
        && digits.len() == POD_INTERFACE_DIGITS
        && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}
