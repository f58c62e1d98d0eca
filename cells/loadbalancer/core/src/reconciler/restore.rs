//! Restores ids and records from the entries of the previous run, and prunes those that no frontend desires.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use datapath_abi::LbService;
use smallvec::SmallVec;

use crate::lbmap::maglev::LastTable;
use crate::lbmap::rows::{BackendValue, Family, Key, LbMaps, MapError, Value, backend_state};
use crate::model::address::{LbAddress, Protocol};
use crate::model::backend::BackendState;
use crate::model::fast_map::FastMap;
use crate::model::frontend::Frontend;
use crate::reconciler::backends::Backends;
use crate::reconciler::balancer::Balancer;
use crate::reconciler::ids::Ids;
use crate::reconciler::mirror::Mirror;
use crate::reconciler::record::{Record, Removal};
use crate::reconciler::wildcards::Wildcards;

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
            frontends: FastMap::default(),
            backends: Backends::new(),
            wildcards: Wildcards::default(),
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
        let (mut backends, mut of_frontends) = (Vec::new(), Vec::new());
        for (key, value) in self.mirror.rows() {
            match (key, value) {
                (Key::Service(address, slot), Some(Value::Service(row))) => {
                    services.entry(address).or_default().push((slot, row));
                }
                (Key::Backend(_, id), Some(Value::Backend(row))) => backends.push((id, row)),
                (Key::AffinityMatch(id, _) | Key::SourceRange(id, _), _) => of_frontends.push((id, key)),
                (Key::ReverseNat(_, id) | Key::Maglev(_, id), _) => self.ids.seen(id.into()),
                _ => {}
            }
        }
        backends.sort_unstable();
        backends.dedup_by_key(|(id, _)| *id);
        for (id, row) in &backends {
            self.backends.restore(*id, *row);
        }
        for (address, mut slots) in services {
            slots.sort_unstable_by_key(|(slot, _)| *slot);
            self.restore_frontend(address, &slots, &backends);
        }
        let owners: FastMap<u16, LbAddress> =
            self.frontends.iter().map(|(address, record)| (record.id, *address)).collect();
        for (id, key) in of_frontends {
            self.ids.seen(id.into());
            let owner = owners.get(&id).and_then(|address| self.frontends.get_mut(address));
            match key {
                Key::AffinityMatch(_, backend) => {
                    self.backends.seen(backend);
                    owner.into_iter().for_each(|record| record.more().matches.push(backend));
                }
                Key::SourceRange(_, range) => {
                    owner.into_iter().for_each(|record| record.more().ranges.push(range));
                }
                _ => {}
            }
        }
        for more in self.frontends.values_mut().filter_map(|record| record.more.as_mut()) {
            more.ranges.sort();
        }
    }

    /// Rebuilds the record of a frontend from its entries, those of its slots in order. `backends` contains all, by id.
    fn restore_frontend(
        &mut self,
        address: LbAddress,
        slots: &[(u16, LbService)],
        backends: &[(u32, BackendValue)],
    ) {
        let (master, slots) = match slots {
            [(0, master), slots @ ..] => (*master, slots),
            slots => (LbService::default(), slots),
        };
        let id = u16::from_be(master.rev_nat_index);
        if self.ids.reserve(id.into()) {
            match address.protocol {
                // Versions that did not distinguish protocols: the first frontend at this address gets the id.
                Protocol::Any => _ = self.of_any_protocol.insert(address, id),
                _ => {
                    let record = Record { id, restored: true, ..Record::default() };
                    self.frontends.insert(address, record);
                }
            }
        } else if address.protocol == Protocol::Any && id == 0 && slots.is_empty() {
            self.restored_wildcards += 1;
        }
        let all = master.count.saturating_add(master.qcount);
        let is_complete = slots.len() == usize::from(all);
        for (slot, row) in slots {
            let found = backends.binary_search_by_key(&row.backend_id, |(id, _)| *id);
            let state = found.ok().map(|at| backend_state(backends[at].1.state));
            // Slices report terminating backends again; an active one beyond the count was unhealthy. A crash between
            // two writes leaves slots that the counts do not cover, which must not make backends unhealthy.
            if is_complete
                && *slot > master.count
                && state == Some(BackendState::Active)
                && let Some(backend) = self.backends.address(row.backend_id)
            {
                self.quarantined.entry(address).or_default().insert(backend);
            }
            self.backends.seen(row.backend_id);
            self.ids.seen(u16::from_be(row.rev_nat_index).into());
            match self.frontends.get_mut(&address) {
                Some(record) => {
                    record.slots = *slot;
                    if self.backends.hold_restored(row.backend_id, id, state.unwrap_or_default()) {
                        record.backends.push(row.backend_id);
                    }
                }
                None => _ = self.stray_slots.insert(address, *slot),
            }
        }
        if let Some(record) = self.frontends.get_mut(&address) {
            // Two slots may refer to one backend.
            record.backends.sort_unstable();
            record.backends.dedup();
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
        self.frontends.values().filter(|record| record.restored).count()
    }

    /// Deletes entries that no frontend desires; returns the entries that other programs have changed.
    #[cfg(test)]
    pub(crate) fn prune(&mut self) -> Result<Pruned, MapError> {
        self.prune_but(|_| false)
    }

    /// Prunes, but keeps frontends of the previous run that the tables contain: they wait for free capacity.
    pub(crate) fn prune_but(&mut self, waits: impl Fn(&LbAddress) -> bool) -> Result<Pruned, MapError> {
        let restored = self.frontends.iter().filter(|(_, record)| record.restored);
        let mut unclaimed: Vec<Removal> = restored
            .map(|(address, _)| *address)
            .filter(|address| !waits(address))
            .map(Removal::from)
            .collect();
        self.of_any_protocol.drain().for_each(|(_, id)| self.ids.release(id.into()));
        self.restored_wildcards = 0;
        self.remove(&mut unclaimed);
        let mut result = unclaimed.into_iter().try_for_each(|removal| removal.result);
        self.backends.drop_all_unused();
        result = result.and(self.flush_backends());
        let changed = self.mirror.reload()?;
        let owners = Owners::of(self);
        let waiting = self.frontends.iter().filter(|(_, record)| record.restored);
        let waiting: HashSet<Key> = waiting.map(|(address, _)| Key::wildcard(address.ip)).collect();
        let orphans = self.mirror.rows().map(|(key, _)| key).filter(|key| !owners.have(self, key));
        let orphans: Vec<Key> = orphans.filter(|key| !waiting.contains(key)).collect();
        let damaged = changed.iter().flat_map(|key| owners.served(self, key)).collect();
        // A frontend's own entry is deleted before the entries that it refers to.
        let (masters, others): (Vec<Key>, Vec<Key>) =
            orphans.into_iter().partition(|key| matches!(key, Key::Service(_, 0)));
        let count = masters.len() + others.len();
        result = result.and(self.mirror.delete(masters)).and_then(|()| self.mirror.delete(others));
        self.stray_slots.clear();
        for key in &changed {
            if let Key::Backend(_, id) = key {
                self.backends.damaged(*id);
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
        let frontends = || balancer.frontends.iter();
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
        let record = |id| balancer.frontends.get(self.by_id.get(id)?);
        match key {
            Key::Service(address, slot) => match balancer.frontends.get(address) {
                Some(record) => *slot <= record.slots,
                None => *key == Key::wildcard(address.ip) && balancer.wildcards.row(address.ip).is_some(),
            },
            Key::Backend(family, id) => balancer.backends.is_used(*id, *family),
            Key::ReverseNat(family, id) | Key::Maglev(family, id) => self.frontend(*id, *family).is_some(),
            Key::AffinityMatch(id, backend) => self.matches.contains(&(*id, *backend)),
            Key::SourceRange(id, range) => record(id).is_some_and(|record| record.ranges().contains(range)),
        }
    }

    /// Returns the frontends that an entry serves, if it has an owner.
    fn served(&self, balancer: &Balancer, key: &Key) -> Vec<LbAddress> {
        match key {
            _ if !self.have(balancer, key) => Vec::new(),
            Key::Service(address, _) if balancer.frontends.contains_key(address) => vec![*address],
            Key::Service(address, _) => balancer.wildcards.of(address.ip).collect(),
            Key::Backend(_, id) => {
                let by = balancer.backends.frontends(*id);
                by.filter_map(|id| self.by_id.get(&id)).copied().collect()
            }
            Key::ReverseNat(_, id)
            | Key::Maglev(_, id)
            | Key::AffinityMatch(id, _)
            | Key::SourceRange(id, _) => self.by_id.get(id).copied().into_iter().collect(),
        }
    }
}
