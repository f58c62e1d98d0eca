//! Restores ids and records from the entries of the previous run, and prunes those that no frontend desires.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use datapath_abi::LbService;
use smallvec::SmallVec;

use crate::lbmap::maglev::LastTable;
use crate::lbmap::rows::{Family, Key, LbMaps, MapError, Value};
use crate::model::address::{LbAddress, Protocol};
use crate::model::backend::BackendState;
use crate::model::fast_map::FastMap;
use crate::model::frontend::Frontend;
use crate::model::numbers::Numbers;
use crate::reconciler::balancer::Balancer;
use crate::reconciler::ids::Ids;
use crate::reconciler::mirror::Mirror;
use crate::reconciler::record::Removal;

/// The largest id of a frontend.
const MAX_FRONTEND: u32 = u16::MAX as u32 - 1;

/// The entries of a frontend by slot, its own at slot 0.
type Slots = SmallVec<[(u16, LbService); 2]>;

/// The result of comparing whole maps.
#[derive(Debug, Default)]
pub(crate) struct Pruned {
    /// Frontends whose entries another program has changed.
    pub(crate) damaged: HashSet<LbAddress>,
    /// Entries that another program has changed.
    pub(crate) changed: HashSet<Key>,
}

impl Balancer {
    /// Reads the maps. Nothing is changed before frontends are updated, removed or pruned.
    pub(crate) fn restore(maps: Arc<dyn LbMaps>) -> Result<Balancer, MapError> {
        let mirror = Mirror::load(maps)?;
        let mut balancer = Balancer {
            mirror,
            ids: Ids::new(MAX_FRONTEND),
            stray_slots: HashMap::new(),
            last_table: LastTable::default(),
            expansions: HashMap::new(),
            quarantined: HashMap::new(),
            of_any_protocol: HashMap::new(),
            restored_wildcards: 0,
            id_file: None,
        };
        balancer.restore_records();
        Ok(balancer)
    }

    /// Rebuilds the records of backends and frontends from the entries. They are visited in order, so that every
    /// restart resolves contradictory entries in the same way.
    fn restore_records(&mut self) {
        let mut services = BTreeMap::<LbAddress, Slots>::new();
        let mut of_frontends = Vec::new();
        for (key, value) in self.mirror.rows() {
            match (key, value) {
                (Key::Service(address, slot), Some(Value::Service(row))) => {
                    services.entry(address).or_default().push((slot, row));
                }
                (Key::AffinityMatch(id, _) | Key::SourceRange(id, _), _) => of_frontends.push((id, key)),
                (Key::ReverseNat(_, id) | Key::Maglev(_, id), _) => self.ids.seen(id.into()),
                _ => {}
            }
        }
        for (address, mut slots) in services {
            slots.sort_unstable_by_key(|(slot, _)| *slot);
            self.restore_frontend(address, &slots);
        }
        let store = &mut self.mirror.store;
        let owners: FastMap<u16, LbAddress> =
            store.frontends().map(|(address, record)| (record.id, *address)).collect();
        let (mut matches, mut ranges) = (HashMap::<_, Vec<u32>>::new(), HashMap::<_, Vec<_>>::new());
        for (id, key) in of_frontends {
            self.ids.seen(id.into());
            let owner = owners.get(&id).copied();
            match key {
                Key::AffinityMatch(_, backend) => {
                    store.backends.seen(backend);
                    owner.into_iter().for_each(|owner| matches.entry(owner).or_default().push(backend));
                }
                Key::SourceRange(_, range) => {
                    owner.into_iter().for_each(|owner| ranges.entry(owner).or_default().push(range));
                }
                _ => {}
            }
        }
        for (address, matches) in matches {
            store.frontend_mut(&address).into_iter().for_each(|record| record.set_matches(&matches));
        }
        for (address, ranges) in ranges {
            store.frontend_mut(&address).into_iter().for_each(|record| record.add_ranges(&ranges));
        }
    }

    /// Rebuilds the record of a frontend from its entries, those of its slots in order.
    fn restore_frontend(&mut self, address: LbAddress, slots: &[(u16, LbService)]) {
        let (master, slots) = match slots {
            [(0, master), slots @ ..] => (*master, slots),
            slots => (LbService::default(), slots),
        };
        let id = u16::from_be(master.rev_nat_index);
        let (store, mut is_frontend) = (&mut self.mirror.store, false);
        if self.ids.reserve(id.into()) {
            match address.protocol {
                // Versions that did not distinguish protocols: the first frontend at this address gets the id.
                Protocol::Any => _ = self.of_any_protocol.insert(address, id),
                _ => {
                    if let Some((record, _)) = store.frontend_or_begin(address, || Some((id, 0))) {
                        (record.restored, is_frontend) = (true, true);
                    }
                }
            }
        } else if address.protocol == Protocol::Any && id == 0 && slots.is_empty() {
            self.restored_wildcards += 1;
        }
        let all = master.count.saturating_add(master.qcount);
        let is_complete = slots.len() == usize::from(all);
        let mut backends = Numbers::new();
        for (slot, row) in slots {
            let state = store.backends.restored_state(row.backend_id);
            // Slices report terminating backends again; an active one beyond the count was unhealthy. A crash between
            // two writes leaves slots that the counts do not cover, which must not make backends unhealthy.
            if is_complete
                && *slot > master.count
                && state == Some(BackendState::Active)
                && let Some(backend) = store.backends.address(row.backend_id)
            {
                self.quarantined.entry(address).or_default().insert(backend);
            }
            store.backends.seen(row.backend_id);
            self.ids.seen(u16::from_be(row.rev_nat_index).into());
            match is_frontend {
                true if store.backends.hold_restored(row.backend_id, id, state.unwrap_or_default()) => {
                    backends.push(row.backend_id);
                }
                true => {}
                false => _ = self.stray_slots.insert(address, *slot),
            }
        }
        if let Some(record) = store.frontend_mut(&address).filter(|_| is_frontend) {
            record.slots = slots.last().map_or(0, |(slot, _)| *slot);
            // Two slots may refer to one backend.
            backends.sort_unstable();
            backends.dedup();
            record.set_backends(&backends);
        }
    }

    /// Returns the backends of a frontend that the previous run had found unhealthy and that were not checked since.
    pub(crate) fn still_quarantined(
        &mut self,
        frontend: &Frontend,
        address: LbAddress,
    ) -> Option<&BTreeSet<LbAddress>> {
        let quarantined = self.quarantined.get_mut(&address)?;
        let waits = |backend: &LbAddress| {
            let row = frontend.backends.iter().find(|row| row.address == *backend);
            row.is_some_and(|row| row.unhealthy_updated_at.is_none() && row.state == BackendState::Active)
        };
        quarantined.retain(waits);
        if quarantined.is_empty() {
            self.quarantined.remove(&address);
        }
        self.quarantined.get(&address)
    }

    /// Returns the number of frontends of the previous run that were not upserted yet.
    pub(crate) fn restored(&self) -> usize {
        self.mirror.store.frontends().filter(|(_, record)| record.restored).count()
    }

    /// Deletes entries that no frontend desires; returns the entries that other programs have changed.
    #[cfg(test)]
    pub(crate) fn prune(&mut self) -> Result<Pruned, MapError> {
        self.prune_but(|_| false)
    }

    /// Prunes, but keeps frontends of the previous run that the tables contain: they wait for free capacity.
    pub(crate) fn prune_but(&mut self, waits: impl Fn(&LbAddress) -> bool) -> Result<Pruned, MapError> {
        let restored = self.mirror.store.frontends().filter(|(_, record)| record.restored);
        let mut unclaimed: Vec<Removal> = restored
            .map(|(address, _)| *address)
            .filter(|address| !waits(address))
            .map(Removal::from)
            .collect();
        self.of_any_protocol.drain().for_each(|(_, id)| self.ids.release(id.into()));
        self.restored_wildcards = 0;
        self.remove(&mut unclaimed);
        let mut result = unclaimed.into_iter().try_for_each(|removal| removal.result);
        self.mirror.store.backends.drop_all_unused();
        result = result.and(self.flush_backends());
        let changed = self.mirror.reload()?;
        let owners = Owners::of(self);
        let waiting = self.mirror.store.frontends().filter(|(_, record)| record.restored);
        let waiting: HashSet<Key> = waiting.map(|(address, _)| Key::wildcard(address.ip)).collect();
        let orphans = self.mirror.rows().map(|(key, _)| key).filter(|key| !owners.have(self, key));
        let orphans: Vec<Key> = orphans.filter(|key| !waiting.contains(key)).collect();
        let damaged = owners.served(self, &changed);
        // A frontend's own entry is deleted before the entries that it refers to.
        let (masters, others): (Vec<Key>, Vec<Key>) =
            orphans.into_iter().partition(|key| matches!(key, Key::Service(_, 0)));
        let count = masters.len() + others.len();
        result = result.and(self.mirror.delete(masters)).and_then(|()| self.mirror.delete(others));
        self.stray_slots.clear();
        for key in &changed {
            if let Key::Backend(_, id) = key {
                self.mirror.store.backends.damaged(*id);
            }
        }
        if count > 0 {
            tracing::info!(count, "Deleted load balancer rows that belong to no service");
        }
        result.map(|()| Pruned { damaged, changed })
    }
}

/// The frontends by their ids.
struct Owners {
    by_id: FastMap<u16, LbAddress>,
    matches: HashSet<(u16, u32), foldhash::fast::RandomState>,
}

impl Owners {
    fn of(balancer: &Balancer) -> Owners {
        let frontends = || balancer.mirror.store.frontends();
        let matches = frontends().flat_map(|(_, record)| record.matches().iter().map(|b| (record.id, *b)));
        Owners {
            by_id: frontends().map(|(address, record)| (record.id, *address)).collect(),
            matches: matches.collect(),
        }
    }

    /// Returns the frontend of an id, if it is of this family.
    fn frontend(&self, id: u16, family: Family) -> Option<&LbAddress> {
        self.by_id.get(&id).filter(|address| Family::of(address.ip) == family)
    }

    /// Whether an entry has an owner.
    fn have(&self, balancer: &Balancer, key: &Key) -> bool {
        let store = &balancer.mirror.store;
        let record = |id| store.frontend(self.by_id.get(id)?);
        match key {
            Key::Service(address, slot) => match store.frontend(address) {
                Some(record) => *slot <= record.slots,
                None => *key == Key::wildcard(address.ip) && store.wildcards().row(address.ip).is_some(),
            },
            Key::Backend(family, id) => store.backends.is_used(*id, *family),
            Key::ReverseNat(family, id) | Key::Maglev(family, id) => self.frontend(*id, *family).is_some(),
            Key::AffinityMatch(id, backend) => self.matches.contains(&(*id, *backend)),
            Key::SourceRange(id, range) => record(id).is_some_and(|record| record.ranges().contains(range)),
        }
    }

    /// Returns the frontends that entries serve which have an owner.
    fn served(&self, balancer: &Balancer, keys: &HashSet<Key>) -> HashSet<LbAddress> {
        let store = &balancer.mirror.store;
        let mut served = HashSet::new();
        let mut wildcards: HashSet<IpAddr> = HashSet::new();
        for key in keys.iter().filter(|key| self.have(balancer, key)) {
            match key {
                Key::Service(address, _) if store.frontend(address).is_some() => _ = served.insert(*address),
                Key::Service(address, _) => _ = wildcards.insert(address.ip),
                Key::Backend(_, id) => {
                    served.extend(store.backends.frontends(*id).filter_map(|id| self.by_id.get(&id)));
                }
                Key::ReverseNat(_, id)
                | Key::Maglev(_, id)
                | Key::AffinityMatch(id, _)
                | Key::SourceRange(id, _) => served.extend(self.by_id.get(id)),
            }
        }
        if !wildcards.is_empty() {
            let desires = |address: &LbAddress| wildcards.contains(&address.ip.to_canonical());
            let frontends = store.frontends().filter(|(_, record)| record.wildcard.is_some());
            served.extend(frontends.map(|(address, _)| *address).filter(desires));
        }
        served
    }
}
