//! Frontends into the maps: the operations of the reconciler.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use devices::NodeAddress;
use hive::Health;
use maps::DriftChecks;
use reconciler::{BatchEntry, BatchOps, OpCx, OpError, OpResult, Ops};
use statedb::{Obj, Rows, Snapshot, Table};

use crate::lbmap::rows::Key;
use crate::model::address::{LbAddress, Scope};
use crate::model::frontend::{Frontend, FrontendType};
use crate::reconciler::balancer::Balancer;
use crate::reconciler::desired::{Desired, Settings};
use crate::reconciler::restore::Pruned;

/// The input of rows besides the frontends themselves.
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

    /// Where a port of the node has rows: at all addresses for such ports that are not a frontend of their own.
    fn expansion(&self, snapshot: &Snapshot, address: LbAddress, settings: &Settings) -> Vec<LbAddress> {
        let same = |ip: &&IpAddr| ip.is_ipv4() == address.ip.is_ipv4();
        let at = settings.node_port_addresses.iter().filter(same).map(|ip| LbAddress { ip: *ip, ..address });
        at.filter(|at| *at != address && self.frontend(snapshot, *at).is_none()).collect()
    }

    fn other_scope(&self, snapshot: &Snapshot, address: LbAddress) -> Option<Obj<Frontend>> {
        let scope = match address.scope {
            Scope::External => Scope::Internal,
            Scope::Internal => Scope::External,
        };
        self.frontend(snapshot, LbAddress { scope, ..address })
    }
}

/// Who compares the load balancer maps.
pub(crate) const OWNER: &str = "loadbalancer";

/// The reconciler's operations.
pub(crate) struct LbOps {
    pub(crate) balancer: Balancer,
    pub(crate) comparisons: Arc<DriftChecks>,
    pub(crate) context: ReconcileContext,
    /// Where ports of the node are distinguished, which the datapath does not serve.
    pub(crate) unserved: Unserved,
}

/// Tells how many frontends are in the maps that the datapath does not serve.
#[derive(Default)]
pub(crate) struct Unserved {
    health: Option<Health>,
    told: usize,
}

impl Unserved {
    pub(crate) fn new(health: Health) -> Unserved {
        Unserved { health: Some(health), told: 0 }
    }

    fn tell(&mut self, count: usize) {
        let Some(health) = self.health.as_ref().filter(|_| count != self.told) else { return };
        match count {
            0 => health.close(),
            _ => health
                .ok(format!("{count} port(s) of the node are in the maps; the datapath does not serve them")),
        }
        self.told = count;
    }
}

impl LbOps {
    /// Brings frontends into the maps, each at all its addresses; gives the number of each.
    pub(crate) fn upsert_batch<'f>(
        &mut self,
        snapshot: &Snapshot,
        frontends: impl Iterator<Item = &'f Frontend>,
    ) -> Vec<Result<u16, OpError>> {
        let settings = self.context.settings(snapshot);
        let frontends: Vec<&Frontend> = frontends.collect();
        self.place(&settings, &frontends);
        // Rows of external scopes lead to internal ones: those that are not there come along.
        let mut needed: BTreeSet<LbAddress> =
            frontends.iter().filter_map(|frontend| internal_scope(frontend)).collect();
        if !needed.is_empty() {
            frontends.iter().for_each(|frontend| _ = needed.remove(&frontend.address()));
        }
        let missing: Vec<Obj<Frontend>> = needed
            .into_iter()
            .filter(|address| !self.balancer.mirror.has(&Key::master(*address)))
            .filter_map(|address| self.context.frontend(snapshot, address))
            .collect();
        let (mut of, mut wanted) = (Vec::with_capacity(frontends.len()), Vec::with_capacity(frontends.len()));
        let mut results: Vec<Result<Option<u16>, OpError>> = Vec::with_capacity(frontends.len());
        for (index, frontend) in frontends.iter().copied().chain(missing.iter().map(|row| &**row)).enumerate()
        {
            results.push(self.add_desired_rows(snapshot, frontend, &settings, &mut wanted).map(|()| None));
            of.resize(wanted.len(), index);
        }
        for (index, result) in of.into_iter().zip(self.balancer.update(&wanted)) {
            match (&mut results[index], result) {
                (Ok(id @ None), Ok(given)) => *id = Some(given),
                (known @ Ok(_), Err(error)) => *known = Err(error.into()),
                _ => {}
            }
        }
        let vanished = self.vanished(&frontends, &settings, snapshot);
        for (index, addresses) in vanished {
            let removed = self.remove_all(&addresses);
            if let (known @ Ok(_), Err(error)) = (&mut results[index], removed) {
                *known = Err(error);
            }
        }
        self.unserved.tell(self.balancer.expansions.len());
        results.truncate(frontends.len());
        results.into_iter().map(|result| result.map(Option::unwrap_or_default)).collect()
    }

    /// Notes the zones of backends, where zones have numbers.
    fn place(&mut self, settings: &Settings, frontends: &[&Frontend]) {
        let (zones, backends) = (&settings.zones, &mut self.balancer.backends);
        if zones.is_empty() && !backends.has_zones() {
            return;
        }
        for backend in frontends.iter().flat_map(|frontend| &*frontend.backends) {
            let zone = backend.zone.as_ref().and_then(|place| zones.get(place.zone.as_str()));
            backends.set_zone(backend.address, zone.copied().unwrap_or(0));
        }
    }

    /// Adds what the maps should have of a frontend: at its own address, then at those that it expands to.
    fn add_desired_rows(
        &mut self,
        snapshot: &Snapshot,
        frontend: &Frontend,
        settings: &Settings,
        wanted: &mut Vec<Desired>,
    ) -> OpResult {
        let address = frontend.address();
        let expansions = &mut self.balancer.expansions;
        let mut at = Vec::new();
        if expands(frontend) {
            at = self.context.expansion(snapshot, address, settings);
            expansions.entry(address).or_default().extend(at.iter().map(|address| address.ip));
        } else if !expansions.is_empty() {
            // An address of its own is not another's any more.
            if let Some(known) = expansions.get_mut(&unspecified(address)) {
                known.remove(&address.ip);
            }
            expansions.remove(&address);
        }
        let two_scopes = internal_scope(frontend)
            .is_some_and(|internal| self.context.frontend(snapshot, internal).is_some());
        let before = wanted.len();
        for address in std::iter::once(address).chain(at) {
            let none = BTreeSet::new();
            let quarantined = match self.balancer.quarantined.is_empty() {
                true => &none,
                false => self.balancer.still_quarantined(frontend, address).unwrap_or(&none),
            };
            match Desired::of(frontend, address, settings, quarantined) {
                Ok(desired) => {
                    let needs = two_scopes.then_some(LbAddress { scope: Scope::Internal, ..address });
                    wanted.push(Desired { needs, ..desired });
                }
                Err(error) => {
                    wanted.truncate(before);
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Addresses that frontends do not expand to any more, with the place of the frontend.
    fn vanished(
        &mut self,
        frontends: &[&Frontend],
        settings: &Settings,
        snapshot: &Snapshot,
    ) -> Vec<(usize, Vec<LbAddress>)> {
        let mut vanished = Vec::new();
        if self.balancer.expansions.is_empty() {
            return vanished;
        }
        for (index, frontend) in frontends.iter().enumerate() {
            let address = frontend.address();
            let Some(known) = self.balancer.expansions.get(&address) else { continue };
            let now: BTreeSet<IpAddr> = match expands(frontend) {
                true => {
                    let now = self.context.expansion(snapshot, address, settings);
                    now.into_iter().map(|address| address.ip).collect()
                }
                false => BTreeSet::new(),
            };
            let gone: Vec<LbAddress> =
                known.difference(&now).map(|ip| LbAddress { ip: *ip, ..address }).collect();
            // A redirection that has become a frontend of its own stays.
            let (owned, gone): (Vec<_>, Vec<_>) =
                gone.into_iter().partition(|address| self.context.frontend(snapshot, *address).is_some());
            if let Some(known) = self.balancer.expansions.get_mut(&address) {
                owned.iter().for_each(|address| _ = known.remove(&address.ip));
            }
            if !gone.is_empty() {
                vanished.push((index, gone));
            }
        }
        vanished
    }

    /// Removes rows of expanded addresses and forgets those that are gone.
    fn remove_all(&mut self, addresses: &[LbAddress]) -> OpResult {
        let mut result = Ok(());
        for (address, removed) in addresses.iter().zip(self.balancer.remove(addresses)) {
            match removed {
                Ok(()) => {
                    if let Some(known) = self.balancer.expansions.get_mut(&unspecified(*address)) {
                        known.remove(&address.ip);
                    }
                }
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// Whether a frontend has lost rows, at whichever address.
    fn has_lost_rows(&self, damaged: &HashSet<LbAddress>, frontend: &Frontend) -> bool {
        let address = frontend.address();
        let expanded = self.balancer.expansions.get(&address).into_iter().flatten();
        damaged.contains(&address)
            || expanded.into_iter().any(|ip| damaged.contains(&LbAddress { ip: *ip, ..address }))
    }

    /// Takes frontends out of the maps. The row of an external scope must not send clients on to the internal one any
    /// more when that goes.
    pub(crate) fn delete_frontends(&mut self, snapshot: &Snapshot, addresses: &[LbAddress]) -> Vec<OpResult> {
        let internal = addresses.iter().filter(|address| address.scope == Scope::Internal);
        let external: Vec<Obj<Frontend>> =
            internal.filter_map(|address| self.context.other_scope(snapshot, *address)).collect();
        let brought = self.upsert_batch(snapshot, external.iter().map(|frontend| &**frontend));
        let waits: HashMap<LbAddress, String> = external
            .iter()
            .zip(brought)
            .filter_map(|(frontend, result)| Some((frontend.address(), result.err()?.to_string())))
            .collect();
        let reason = |address: &LbAddress| match address.scope {
            Scope::Internal => waits.get(&self::external(*address)),
            Scope::External => None,
        };
        let free: Vec<LbAddress> =
            addresses.iter().filter(|address| reason(address).is_none()).copied().collect();
        // Rows at other addresses go with the frontend that they are of.
        let expanded = |address: &LbAddress| {
            let known = self.balancer.expansions.get(address).into_iter().flatten();
            known.map(|ip| LbAddress { ip: *ip, ..*address }).collect::<Vec<_>>()
        };
        let expansions: Vec<Vec<LbAddress>> = free.iter().map(expanded).collect();
        let parts: Vec<OpResult> = expansions.iter().map(|addresses| self.remove_all(addresses)).collect();
        let whole: Vec<LbAddress> =
            free.iter().zip(&parts).filter(|(_, part)| part.is_ok()).map(|(address, _)| *address).collect();
        let mut removed = self.balancer.remove(&whole).into_iter();
        self.unserved.tell(self.balancer.expansions.len());
        let mut parts = parts.into_iter();
        let mut next = || match parts.next() {
            Some(Err(error)) => Err(error),
            _ => removed.next().unwrap_or(Err("no result".into())),
        };
        let result = |address: &LbAddress| match reason(address) {
            Some(error) => Err(error.clone().into()),
            None => next(),
        };
        let mut results: Vec<OpResult> = addresses.iter().map(result).collect();
        // An address of the node that was a frontend's own is a port of the node again.
        for (address, result) in addresses.iter().zip(&mut results) {
            let port = unspecified(*address);
            if result.is_ok()
                && port != *address
                && self.balancer.expansions.contains_key(&port)
                && let Some(frontend) = self.context.frontend(snapshot, port)
            {
                *result = self
                    .upsert_batch(snapshot, std::iter::once(&*frontend))
                    .into_iter()
                    .try_for_each(|r| r.map(drop));
            }
        }
        results
    }
}

/// Whether a frontend has rows at addresses of the node, too.
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

/// Where its row of the external scope sends clients inside the cluster on to.
fn internal_scope(frontend: &Frontend) -> Option<LbAddress> {
    let (address, service) = (frontend.address(), &frontend.service);
    let differ = service.ext_traffic_policy != service.int_traffic_policy
        && (frontend.params.kind != FrontendType::ClusterIP || frontend.redirect_to.is_some());
    (differ && address.scope == Scope::External).then_some(LbAddress { scope: Scope::Internal, ..address })
}

fn external(address: LbAddress) -> LbAddress {
    LbAddress { scope: Scope::External, ..address }
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
        let waits = |address: &LbAddress| self.context.frontend(cx.snapshot, *address).is_some();
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
        // An update that is repeated deletes what is left over.
        if let Err(error) = self.balancer.drop_awaited()
            && let Some(last) = batch.last_mut()
            && last.result.is_ok()
        {
            last.result = Err(error);
        }
    }

    fn announce_updates(&mut self, _: &OpCx<'_>, updates: &[BatchEntry<Frontend>]) {
        self.balancer.backends.announce(updates.iter().map(|entry| entry.object.backends.clone()));
    }

    fn delete_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Obj<Frontend>>]) {
        let addresses: Vec<_> = batch.iter().map(|entry| entry.object.address()).collect();
        for (entry, result) in batch.iter_mut().zip(self.delete_frontends(cx.snapshot, &addresses)) {
            entry.result = result;
        }
    }
}
