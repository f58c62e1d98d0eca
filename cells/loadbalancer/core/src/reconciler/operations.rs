//! The operations of the reconciler: from frontends of a batch to map entries.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use devices::NodeAddress;
use hive::Health;
use maps::DriftChecks;
use reconciler::{BatchEntry, BatchOps, OpCx, OpError, OpResult, Ops};
use smallvec::SmallVec;
use statedb::{Obj, Rows, Snapshot, Table};

use crate::lbmap::rows::Key;
use crate::model::address::{LbAddress, Scope};
use crate::model::frontend::{Frontend, FrontendType};
use crate::reconciler::balancer::Balancer;
use crate::reconciler::desired::{Desired, Settings};
use crate::reconciler::record::{Removal, Upsert};
use crate::reconciler::restore::Pruned;
use crate::reconciler::translation::{is_translated, mapped, of_twin};

/// The input from which entries are computed, beside the frontend.
pub(crate) struct ReconcileContext {
    /// The values of the options.
    pub(crate) settings: Settings,
    /// The node's addresses.
    pub(crate) addresses: Option<Arc<Table<NodeAddress>>>,
    /// All frontends.
    pub(crate) frontends: Table<Frontend>,
}

impl ReconcileContext {
    fn settings(&self, snapshot: &Snapshot) -> Settings {
        let rows = || self.addresses.iter().flat_map(|table| table.all(snapshot));
        Settings {
            node_addresses: rows().map(|row| row.addr).collect(),
            node_port_addresses: rows().filter(|row| row.node_port).map(|row| row.addr).collect(),
            ..self.settings.clone()
        }
    }

    fn frontend(&self, snapshot: &Snapshot, address: LbAddress) -> Option<Obj<Frontend>> {
        let found = self.frontends.get(snapshot, Frontend::by_address(&address));
        found.filter(|frontend| frontend.is_reconciled()).cloned()
    }

    /// Returns the addresses that a node port expands to: all node port addresses without a frontend of their own.
    fn expansion(&self, snapshot: &Snapshot, address: LbAddress, settings: &Settings) -> Vec<LbAddress> {
        let same = |ip: &&IpAddr| ip.is_ipv4() == address.ip.is_ipv4();
        let at = settings.node_port_addresses.iter().filter(same).map(|ip| LbAddress { ip: *ip, ..address });
        at.filter(|at| *at != address && self.frontend(snapshot, *at).is_none()).collect()
    }
}

/// The owner of the load balancer maps in drift checks.
pub(crate) const OWNER: &str = "loadbalancer";

/// The reconciler's operations.
pub(crate) struct LbOps {
    pub(crate) balancer: Balancer,
    pub(crate) comparisons: Arc<DriftChecks>,
    pub(crate) context: ReconcileContext,
    /// Reports ports of the node that the datapath does not serve.
    pub(crate) unserved: Unserved,
}

/// A report of the number of ports of the node in the maps that the datapath does not serve.
#[derive(Default)]
pub(crate) struct Unserved {
    /// None where devices serve frontends (`kube-proxy-replacement`).
    health: Option<Health>,
    reported: usize,
}

impl Unserved {
    pub(crate) fn new(health: Option<Health>) -> Unserved {
        Unserved { health, reported: 0 }
    }

    fn report(&mut self, count: usize) {
        let Some(health) = self.health.as_ref().filter(|_| count != self.reported) else { return };
        match count {
            0 => health.close(),
            _ => health.ok(format!(
                "{count} port(s) of the node are in the maps; serving them needs kube-proxy-replacement"
            )),
        }
        self.reported = count;
    }
}

impl LbOps {
    /// Upserts the entries of frontends, each at all its addresses; returns the id of each, in order.
    pub(crate) fn upsert_batch<'f>(
        &mut self,
        snapshot: &Snapshot,
        frontends: impl Iterator<Item = &'f Frontend>,
    ) -> Vec<Result<u16, OpError>> {
        let settings = self.context.settings(snapshot);
        let frontends: Vec<&Frontend> = frontends.collect();
        let requested = frontends.len();
        self.set_zones(&settings, &frontends);
        let internal = self.missing_internal_scopes(snapshot, &frontends);
        let all = frontends.into_iter().chain(internal.iter().map(|frontend| &**frontend));
        let mut updates: Vec<Update<'_>> = all
            .map(|frontend| Update { frontend, upserts: self.desired(snapshot, frontend, &settings) })
            .collect();
        self.balancer.upsert(updates.iter_mut().filter_map(|update| update.upserts.as_mut().ok()).flatten());
        updates.truncate(requested);
        let finish = |update: Update<'_>| {
            let removed = self.remove_stale_expansions(snapshot, update.frontend, &settings);
            let twins = match is_translated(update.frontend) || !settings.translation {
                true => Ok(()),
                false => {
                    let address = update.frontend.address();
                    let expanded = self.balancer.expansions.get(&address).into_iter().flatten();
                    let expanded = expanded.map(|ip| LbAddress { ip: *ip, ..address });
                    self.remove_twins(&std::iter::once(address).chain(expanded).collect::<SmallVec<[_; 1]>>())
                }
            };
            let id = update.id()?;
            removed.and(twins).map(|()| id)
        };
        let results = updates.into_iter().map(finish).collect();
        self.unserved.report(self.balancer.expansions.len());
        results
    }

    /// Returns the frontends of internal scopes that entries of external scopes refer to and that have no entries yet.
    fn missing_internal_scopes(&self, snapshot: &Snapshot, frontends: &[&Frontend]) -> Vec<Obj<Frontend>> {
        let internal = frontends.iter().filter_map(|frontend| internal_scope(frontend));
        let mut needed: BTreeSet<LbAddress> = internal.collect();
        if !needed.is_empty() {
            frontends.iter().for_each(|frontend| _ = needed.remove(&frontend.address()));
        }
        needed
            .into_iter()
            .filter(|address| !self.balancer.mirror.has(&Key::master(*address)))
            .filter_map(|address| self.context.frontend(snapshot, address))
            .collect()
    }

    /// Sets the zones of backends, if zones have ids.
    fn set_zones(&mut self, settings: &Settings, frontends: &[&Frontend]) {
        let (zones, backends) = (&settings.zones, &mut self.balancer.mirror.store.backends);
        if zones.is_empty() && !backends.has_zones() {
            return;
        }
        for backend in frontends.iter().flat_map(|frontend| &*frontend.backends) {
            let zone = backend.zone.as_ref().and_then(|place| zones.get(place.zone.as_str()));
            backends.set_zone(backend.address, zone.copied().unwrap_or(0));
        }
    }

    /// Returns the desired entries of a frontend: at its own address, then at those that it expands to.
    fn desired(
        &mut self,
        snapshot: &Snapshot,
        frontend: &Frontend,
        settings: &Settings,
    ) -> Result<Upserts, OpError> {
        let address = frontend.address();
        let expansions = &mut self.balancer.expansions;
        let mut expanded = Vec::new();
        if expands(frontend) {
            expanded = self.context.expansion(snapshot, address, settings);
            expansions.entry(address).or_default().extend(expanded.iter().map(|address| address.ip));
        } else if !expansions.is_empty() {
            // A node port does not expand to an address that has a frontend of its own.
            if let Some(known) = expansions.get_mut(&unspecified(address)) {
                known.remove(&address.ip);
            }
            expansions.remove(&address);
        }
        let two_scopes = internal_scope(frontend)
            .is_some_and(|internal| self.context.frontend(snapshot, internal).is_some());
        let mut upserts = Upserts::new();
        let has_twins = address.ip.is_ipv4() && is_translated(frontend);
        let twins: Vec<LbAddress> = match has_twins {
            true => std::iter::once(address).chain(expanded.iter().copied()).map(mapped).collect(),
            false => Vec::new(),
        };
        for address in std::iter::once(address).chain(expanded).chain(twins) {
            let none = BTreeSet::new();
            let quarantined = match self.balancer.quarantined.is_empty() {
                true => &none,
                false => self.balancer.still_quarantined(frontend, address).unwrap_or(&none),
            };
            let desired = Desired::new(frontend, address, settings, quarantined)?;
            let needs = two_scopes.then_some(LbAddress { scope: Scope::Internal, ..address });
            upserts.push(Desired { needs, ..desired }.into());
        }
        Ok(upserts)
    }

    /// Removes the entries at addresses that a frontend does not expand to any more.
    fn remove_stale_expansions(
        &mut self,
        snapshot: &Snapshot,
        frontend: &Frontend,
        settings: &Settings,
    ) -> OpResult {
        let address = frontend.address();
        let Some(known) = self.balancer.expansions.get_mut(&address) else { return Ok(()) };
        let now: BTreeSet<IpAddr> = match expands(frontend) {
            true => self.context.expansion(snapshot, address, settings).iter().map(|at| at.ip).collect(),
            false => BTreeSet::new(),
        };
        // Entries at an address that has become a frontend of its own belong to that frontend now: they stay.
        let is_owned = |ip| self.context.frontend(snapshot, LbAddress { ip, ..address }).is_some();
        known.retain(|ip| now.contains(ip) || !is_owned(*ip));
        let stale: Vec<LbAddress> =
            known.difference(&now).map(|ip| LbAddress { ip: *ip, ..address }).collect();
        self.remove_expansions(&stale)
    }

    /// Removes the entries of the twins of these addresses, if there are any.
    fn remove_twins(&mut self, addresses: &[LbAddress]) -> OpResult {
        if !self.context.settings.translation {
            return Ok(());
        }
        let mirror = &self.balancer.mirror;
        let twins = addresses.iter().filter(|address| address.ip.is_ipv4()).map(|address| mapped(*address));
        let twins = twins.filter(|twin| mirror.has(&Key::master(*twin)));
        let mut removals: Vec<Removal> = twins.map(Removal::from).collect();
        self.balancer.remove(&mut removals);
        removals.into_iter().try_for_each(|removal| removal.result)
    }

    /// Removes entries at addresses that frontends expand to, and the record of those addresses.
    fn remove_expansions(&mut self, addresses: &[LbAddress]) -> OpResult {
        if addresses.is_empty() {
            return Ok(());
        }
        let mut removals: Vec<Removal> = addresses.iter().copied().map(Removal::from).collect();
        self.balancer.remove(&mut removals);
        let mut result = self.remove_twins(addresses);
        for Removal { address, result: removed } in removals {
            match removed {
                Ok(()) => {
                    if let Some(known) = self.balancer.expansions.get_mut(&unspecified(address)) {
                        known.remove(&address.ip);
                    }
                }
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// Whether a frontend has lost entries, at any of its addresses.
    fn has_lost_rows(&self, damaged: &HashSet<LbAddress>, frontend: &Frontend) -> bool {
        let address = frontend.address();
        let expanded = self.balancer.expansions.get(&address).into_iter().flatten();
        let has_lost = |address: LbAddress| {
            damaged.contains(&address)
                || self.context.settings.translation && damaged.contains(&mapped(address))
        };
        has_lost(address) || expanded.into_iter().any(|ip| has_lost(LbAddress { ip: *ip, ..address }))
    }

    /// Deletes the entries of frontends; returns the result of each, in order.
    pub(crate) fn delete_frontends(&mut self, snapshot: &Snapshot, addresses: &[LbAddress]) -> Vec<OpResult> {
        let mut removals: Vec<Removal> = addresses.iter().copied().map(Removal::from).collect();
        self.detach_internal_scopes(snapshot, &mut removals);
        // Entries at addresses of the node go before the frontend's own, because `expansions` lists them by the
        // frontend.
        for Removal { address, result } in removals.iter_mut().filter(|removal| removal.result.is_ok()) {
            let expanded = self.balancer.expansions.get(address).into_iter().flatten();
            let expanded: Vec<LbAddress> = expanded.map(|ip| LbAddress { ip: *ip, ..*address }).collect();
            *result = self.remove_expansions(&expanded);
        }
        for removal in removals.iter_mut().filter(|removal| removal.result.is_ok()) {
            removal.result = self.remove_twins(&[removal.address]);
        }
        self.balancer.remove(&mut removals);
        self.unserved.report(self.balancer.expansions.len());
        self.restore_expansions(snapshot, &mut removals);
        removals.into_iter().map(|removal| removal.result).collect()
    }

    /// Rewrites the entries of external scopes that refer to internal ones to be removed. If that fails, the internal
    /// one must stay: its clients would have no backends.
    fn detach_internal_scopes(&mut self, snapshot: &Snapshot, removals: &mut [Removal]) {
        let internal = removals.iter_mut().filter(|removal| removal.address.scope == Scope::Internal);
        let (external, internal): (Vec<Obj<Frontend>>, Vec<&mut Removal>) = internal
            .filter_map(|removal| {
                let external = LbAddress { scope: Scope::External, ..removal.address };
                Some((self.context.frontend(snapshot, external)?, removal))
            })
            .unzip();
        let rewritten = self.upsert_batch(snapshot, external.iter().map(|frontend| &**frontend));
        for (removal, rewritten) in internal.into_iter().zip(rewritten) {
            removal.result = rewritten.map(drop);
        }
    }

    /// Expands node ports again to addresses that frontends of their own have released. All in one batch, since the
    /// entry of an external scope needs that of the internal one at the same address, which may be released as well.
    fn restore_expansions(&mut self, snapshot: &Snapshot, removals: &mut [Removal]) {
        let released = removals.iter().map(|removal| {
            let port = unspecified(removal.address);
            let is_restored = removal.result.is_ok()
                && port != removal.address
                && self.balancer.expansions.contains_key(&port);
            is_restored.then_some(port)
        });
        let released: Vec<Option<LbAddress>> = released.collect();
        let ports: BTreeSet<LbAddress> = released.iter().copied().flatten().collect();
        let frontends: Vec<Obj<Frontend>> =
            ports.iter().filter_map(|port| self.context.frontend(snapshot, *port)).collect();
        let results = self.upsert_batch(snapshot, frontends.iter().map(|frontend| &**frontend));
        for (frontend, result) in frontends.iter().zip(results) {
            // One retry restores the port, so one of the removals reports the failure.
            if let Err(error) = result
                && let Some(place) = released.iter().position(|port| *port == Some(frontend.address()))
            {
                removals[place].result = Err(error);
            }
        }
    }
}

/// The desired entries of a frontend by address, with their results.
type Upserts = SmallVec<[Upsert; 1]>;

/// A frontend of a batch.
struct Update<'f> {
    frontend: &'f Frontend,
    /// The entries, or the reason why it can have none.
    upserts: Result<Upserts, OpError>,
}

impl Update<'_> {
    /// Returns the id of the frontend at its own address, or the first error at any.
    fn id(self) -> Result<u16, OpError> {
        let mut results = self.upserts?.into_iter().map(|upsert| upsert.result);
        let id = results.next().unwrap_or(Ok(0))?;
        results.try_for_each(|other| other.map(drop))?;
        Ok(id)
    }
}

/// Whether a frontend has entries at addresses of the node, too.
fn expands(frontend: &Frontend) -> bool {
    match frontend.params.kind {
        FrontendType::NodePort => true,
        FrontendType::HostPort => frontend.address().ip.is_unspecified(),
        _ => false,
    }
}

fn unspecified(address: LbAddress) -> LbAddress {
    let ip = match address.ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    LbAddress { ip, ..address }
}

/// Returns the internal scope of a frontend whose external one forwards clients inside the cluster to it.
fn internal_scope(frontend: &Frontend) -> Option<LbAddress> {
    let (address, service) = (frontend.address(), &frontend.service);
    let differ = service.ext_traffic_policy != service.int_traffic_policy
        && (frontend.params.kind != FrontendType::ClusterIP || frontend.redirect_to.is_some());
    (differ && address.scope == Scope::External).then_some(LbAddress { scope: Scope::Internal, ..address })
}

impl Ops<Frontend> for LbOps {
    fn update(&mut self, cx: &OpCx<'_>, frontend: &mut Frontend) -> OpResult {
        let results = self.upsert_batch(cx.snapshot, std::iter::once(&*frontend));
        for result in results {
            frontend.id = result?;
        }
        Ok(())
    }

    fn delete(&mut self, cx: &OpCx<'_>, frontend: &Frontend) -> OpResult {
        self.delete_frontends(cx.snapshot, &[frontend.address()]).into_iter().collect()
    }

    fn prune(&mut self, cx: &OpCx<'_>, frontends: Rows<'_, Frontend>) -> OpResult {
        let exists = |address| self.context.frontend(cx.snapshot, address).is_some();
        let waits = |address: &LbAddress| {
            exists(*address) || self.context.settings.translation && of_twin(*address).is_some_and(exists)
        };
        let Pruned { damaged, changed } = self.balancer.prune_but(waits)?;
        let damaged: Vec<_> = frontends.filter(|frontend| self.has_lost_rows(&damaged, frontend)).collect();
        let results = self.upsert_batch(cx.snapshot, damaged.iter().map(|frontend| &***frontend));
        results.into_iter().try_for_each(|result| result.map(drop))?;
        let repaired = changed.iter().map(|key| format!("{}: {key}", key.map().name())).collect();
        self.comparisons.compared(OWNER, self.balancer.mirror.len(), repaired);
        Ok(())
    }
}

impl BatchOps<Frontend> for LbOps {
    fn update_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Frontend>]) {
        let results = self.upsert_batch(cx.snapshot, batch.iter().map(|entry| &entry.object));
        for (entry, result) in batch.iter_mut().zip(results) {
            match result {
                Ok(id) => entry.object.id = id,
                Err(error) => entry.result = Err(error),
            }
        }
        // The retry of one update deletes the unused entries: it suffices that one reports the failure.
        if let Err(error) = self.balancer.drop_awaited()
            && let Some(last) = batch.last_mut()
            && last.result.is_ok()
        {
            last.result = Err(error);
        }
    }

    fn announce_updates(&mut self, _: &OpCx<'_>, updates: &[BatchEntry<Frontend>]) {
        self.balancer
            .mirror
            .store
            .backends
            .announce(updates.iter().map(|entry| entry.object.backends.clone()));
    }

    fn delete_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Obj<Frontend>>]) {
        let addresses: Vec<_> = batch.iter().map(|entry| entry.object.address()).collect();
        for (entry, result) in batch.iter_mut().zip(self.delete_frontends(cx.snapshot, &addresses)) {
            entry.result = result;
        }
    }
}
