//! The datapath in the kernel: the order in which an endpoint's map entries, pins and programs are created and removed.

use std::collections::BTreeSet;
use std::sync::Arc;

use datapath_abi::{
    EndpointConfig, PolicyEntry, PolicyKey, PolicyStatsKey, PolicyStatsValue, ep_flag, identity,
};
use datapath_api::{Datapath, DatapathError, EndpointDatapath, PolicyWrite, Pruned, Step};
use devices::{Link, Netlink};
use futures::future::{BoxFuture, FutureExt};
use maps::Maps;
use tokio::sync::watch;

use crate::endpoints::conntrack_purge::ConntrackPurge;
use crate::endpoints::drift;
use crate::endpoints::idle_socket::IdleSocket;
use crate::endpoints::leftovers;
use crate::endpoints::pod_programs::PodPrograms;
use crate::endpoints::policy_maps::{PolicyMaps, allow_all, only_allow_all};
use crate::endpoints::pool::{PolicyMap, PolicyPool};
use crate::endpoints::table::EndpointTable;
use crate::programs::set::ProgramSet;

/// The datapath settings that options configure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelOptions {
    /// Priority of tc filters (`bpf-filter-priority`).
    pub filter_priority: u16,
    /// Whether programs apply policy to ICMP messages by type (`enable-icmp-rules`).
    pub icmp_rules: bool,
    /// Whether programs enforce policy on the host endpoint (`enable-host-firewall`).
    pub host_firewall: bool,
}

/// Endpoints in the kernel's maps, and the programs on their interfaces. Each part owns its state and the lock of it;
/// the order of the locks is that of `endpoints/lock_order.rs`.
#[derive(Debug)]
pub struct KernelDatapath {
    maps: Arc<Maps>,
    icmp_rules: bool,
    host_firewall: bool,
    table: EndpointTable,
    policy_maps: PolicyMaps,
    programs: PodPrograms,
    conntrack_purge: ConntrackPurge,
    links: IdleSocket<Netlink>,
    ready: watch::Sender<bool>,
    host_endpoint: watch::Sender<u16>,
}

impl KernelDatapath {
    /// Creates a datapath over these maps, which need not be open yet.
    pub fn new(maps: Arc<Maps>, options: KernelOptions) -> KernelDatapath {
        KernelDatapath {
            icmp_rules: options.icmp_rules,
            host_firewall: options.host_firewall,
            table: EndpointTable::new(maps.clone()),
            policy_maps: PolicyMaps::new(maps.clone()),
            programs: PodPrograms::new(maps.clone(), options.filter_priority),
            conntrack_purge: ConntrackPurge::default(),
            links: IdleSocket::new(),
            ready: watch::Sender::new(false),
            host_endpoint: watch::Sender::new(0),
            maps,
        }
    }

    pub(crate) fn maps(&self) -> &Maps {
        &self.maps
    }

    pub(crate) fn table(&self) -> &EndpointTable {
        &self.table
    }

    pub(crate) fn policy_maps(&self) -> &PolicyMaps {
        &self.policy_maps
    }

    /// Returns the pool of policy maps, which a job refills.
    pub fn pool(&self) -> &PolicyPool {
        self.policy_maps.pool()
    }

    /// Returns the purge of deleted endpoints' connections, which a job runs.
    pub fn conntrack_purge(&self) -> &ConntrackPurge {
        &self.conntrack_purge
    }

    /// Returns the host endpoint's id and its changes; 0 while there is none.
    pub fn host_endpoint(&self) -> watch::Receiver<u16> {
        self.host_endpoint.subscribe()
    }

    /// Returns the programs in use; `None` before the first load.
    pub fn programs(&self) -> Option<Arc<ProgramSet>> {
        self.programs.current()
    }

    /// Marks the datapath as ready: [`Datapath::ready`] resolves.
    pub fn set_ready(&self) {
        self.ready.send_replace(true);
    }

    /// Replaces the programs on every pod's interface, each endpoint whole. Returns the number of switched interfaces.
    ///
    /// # Errors
    /// [`DatapathError::NotSwitched`] after all interfaces were tried: until another call succeeds, some may run the
    /// previous programs.
    pub fn switch(&self, programs: Arc<ProgramSet>, nl: &mut Netlink) -> Result<usize, DatapathError> {
        self.programs.switch(&self.table, programs, nl)
    }

    /// Removes the programs for packets to pods that a run with endpoint routes has left, after the routes to the pods.
    /// Returns the number of interfaces.
    pub fn detach_to_pods(&self, nl: &mut Netlink) -> Result<usize, DatapathError> {
        self.programs.detach_to_pods(&self.table, nl)
    }

    /// Attaches the program to the interface of a pod that is not announced yet: its packets drop with 203 until it is.
    /// False if there is no such interface, if it has the program, or before the first load.
    pub fn guard(&self, ifindex: u32, ifname: &str) -> Result<bool, DatapathError> {
        self.programs.guard(ifindex, ifname)
    }

    /// Reattaches the program to endpoints' interfaces that have lost it. Returns descriptions of the repairs.
    pub fn reattach(&self, nl: &mut Netlink) -> Result<Vec<String>, DatapathError> {
        self.programs.reattach(&self.table, nl)
    }

    /// Rewrites endpoints' map entries that differ from the desired ones, and removes entries without an owner.
    /// Returns descriptions of the repairs.
    pub fn repair_rows(&self, links: &[Link]) -> Result<Vec<String>, DatapathError> {
        drift::repair(&self.table, links)
    }

    /// Makes the host's map allow everything. With host policies an existing map keeps its entries, even none, which deny
    /// everything: those of the previous run are in force until the new ones are known.
    fn allow_host(&self, map: &PolicyMap, id: u16, is_new: bool) -> Result<(), DatapathError> {
        match (self.host_firewall, is_new) {
            (true, false) => Ok(()),
            (true, true) => allow_all(map, id),
            (false, _) => only_allow_all(map, id),
        }
    }

    fn check_ready(&self, id: u16) -> Result<(), DatapathError> {
        if id == 0 {
            return Err(DatapathError::InvalidId { id });
        }
        if *self.ready.borrow() { Ok(()) } else { Err(DatapathError::NotReady) }
    }
}

impl Datapath for KernelDatapath {
    fn ready(&self) -> BoxFuture<'static, ()> {
        let mut ready = self.ready.subscribe();
        // An error means that the datapath was dropped: no caller is left.
        async move { drop(ready.wait_for(|ready| *ready).await) }.boxed()
    }

    fn attach(&self, endpoint: &EndpointDatapath) -> Result<(), DatapathError> {
        let id = endpoint.id;
        self.check_ready(id)?;
        let locked = self.table.lock(id);
        let old = locked.config();
        let slot = self.policy_maps.assign(&locked)?;

        locked.forget_detached();
        let config = endpoint.config(slot);
        if old != config {
            let step = || format!("endpoint {id}: write settings");
            // The kernel copies an entry in pieces, and no reader may see half of the old and half of the new owner:
            // clear the entry first. A changed identity of the same owner is one aligned word, which the kernel copies
            // atomically, so no packet has to be dropped meanwhile.
            let cleared = match old.flags & ep_flag::LIVE != 0 && old.ifindex != config.ifindex {
                true => locked.write_config(&EndpointConfig::default()),
                false => Ok(()),
            };
            if let Err(error) = cleared.and_then(|()| locked.write_config(&config)).step(step) {
                self.policy_maps.unassign(&locked, slot);
                return Err(error);
            }
        }
        if old.id != 0 && old.ifindex != config.ifindex {
            locked.remove_interface(old.ifindex)?;
        }
        locked.write_interface(config.ifindex)?;
        if !self.programs.attach(&locked, endpoint, old == config)? {
            locked.detach_interface(&config)?;
            let EndpointDatapath { id, ifindex, ifname, .. } = endpoint.clone();
            return Err(DatapathError::NoInterface { id, ifindex, ifname });
        }
        let before = EndpointDatapath::from_config(&old);
        if old.id != 0 && (before.ipv4, before.ipv6) != (endpoint.ipv4, endpoint.ipv6) {
            locked.remove_addresses(&before)?;
            let left = before.addresses().filter(|ip| !endpoint.addresses().any(|own| own == *ip));
            self.conntrack_purge.add_addresses(left);
        }
        // Before the address entries are written: a reply of an old connection would pass without a policy lookup.
        self.conntrack_purge.purge_before_reuse(&self.maps, endpoint.addresses())?;
        locked.write_addresses(endpoint)
    }

    fn up(&self, endpoint: &EndpointDatapath) -> Result<(), DatapathError> {
        self.links.with(Netlink::open, |nl| nl.set_link_up(endpoint.ifindex, true)).map_err(|e| {
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
        let locked = self.table.lock(id);
        locked.forget_detached();
        let old = locked.config();
        // First, as only the settings entry names the interface: with the settings removed first, a start after a crash
        // in between could not find the entry that maps the interface to the endpoint.
        if old.ifindex != 0 {
            locked.remove_interface(old.ifindex)?;
        }
        let step = || format!("endpoint {id}: remove settings");
        locked.write_config(&EndpointConfig::default()).step(step)?;
        locked.remove_addresses(&EndpointDatapath::from_config(&old))?;
        self.programs.remove_policy_call(&locked)?;
        self.policy_maps.unpin(id).step(|| format!("endpoint {id}: remove its policy pin"))?;
        locked.remove_id().step(|| format!("endpoint {id}: forget its id"))?;
        self.pool().give_back(old.policy_slot);
        self.conntrack_purge.add_addresses(EndpointDatapath::from_config(&old).addresses());
        self.conntrack_purge.add_endpoint(id);
        Ok(old.id != 0)
    }

    fn expect_host(&self, id: u16) {
        self.host_endpoint.send_if_modified(|current| std::mem::replace(current, id) != id);
    }

    fn attach_host(&self, id: u16, flags: u32) -> Result<(), DatapathError> {
        if id == 0 {
            return Err(DatapathError::InvalidId { id });
        }
        let locked = self.table.lock(id);
        let known = locked.config();
        let policy_slot = self.policy_maps.assign(&locked)?;
        let is_new = known.id == 0 || known.policy_slot != policy_slot;
        let config = EndpointConfig {
            id: id.into(),
            identity: identity::HOST,
            // No program serves it by its interface.
            flags: flags & !ep_flag::LIVE,
            policy_slot,
            ..EndpointConfig::default()
        };
        let allowed = self.pool().map(policy_slot).and_then(|map| match map {
            Some(map) => self.allow_host(&map, id, is_new),
            None => Ok(()),
        });
        let step = || format!("host endpoint {id}: write settings");
        if let Err(error) = allowed.and_then(|()| locked.write_config(&config).step(step)) {
            self.policy_maps.unassign(&locked, policy_slot);
            return Err(error);
        }
        self.expect_host(id);
        Ok(())
    }

    fn policy_rows(&self, id: u16) -> Result<Vec<(PolicyKey, PolicyEntry)>, DatapathError> {
        self.policy_maps.entries(&self.table.lock(id))
    }

    fn policy_counts(&self) -> Result<Vec<(PolicyStatsKey, PolicyStatsValue)>, DatapathError> {
        self.policy_maps.counts()
    }

    fn write_policy(&self, id: u16, writes: &[PolicyWrite]) -> Result<(), DatapathError> {
        self.policy_maps.write(&self.table.lock(id), writes)
    }

    fn swap_policy(&self, id: u16, rows: &[(PolicyKey, PolicyEntry)]) -> Result<(), DatapathError> {
        self.policy_maps.swap(&self.table.lock(id), rows)
    }

    fn policy_capacity(&self) -> usize {
        self.policy_maps.capacity()
    }

    fn icmp_rules(&self) -> bool {
        self.icmp_rules
    }

    fn host_firewall(&self) -> bool {
        self.host_firewall
    }

    fn restored(&self) -> Result<Vec<EndpointDatapath>, DatapathError> {
        let live = self.table.all().into_iter().filter(|config| config.flags & ep_flag::LIVE != 0);
        Ok(live.map(|config| EndpointDatapath::from_config(&config)).collect())
    }

    fn prune(&self, known: &BTreeSet<u16>) -> Result<Pruned, DatapathError> {
        let ids = self.table.all().into_iter().map(|config| config.id as u16);
        let unknown: Vec<u16> = ids.filter(|id| !known.contains(id)).collect();
        for id in &unknown {
            self.detach(*id)?;
        }
        self.conntrack_purge.request_full_scan();
        Ok(Pruned { endpoints: unknown, leftovers: leftovers::sweep(&self.maps, known)? })
    }
}
