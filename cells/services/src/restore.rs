//! What an earlier run has left in the maps: numbers that stay, and what is to go when nobody asks for it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use datapath_abi::{LbService, lb_backend_state};

use crate::address::{LbAddress, Protocol};
use crate::backend::BackendState;
use crate::backends::Backends;
use crate::balancer::{Balancer, Record};
use crate::ids::Ids;
use crate::maglev::LastTable;
use crate::mirror::Mirror;
use crate::rows::{Key, LbMaps, MapError, Value};

/// Largest number of a frontend.
const MAX_FRONTEND: u32 = u16::MAX as u32 - 1;

/// What a comparison of the whole maps has found.
#[derive(Debug, Default)]
pub(crate) struct Pruned {
    /// Frontends that have lost rows to somebody else.
    pub(crate) hurt: HashSet<LbAddress>,
    /// Rows that somebody else has changed.
    pub(crate) changed: HashSet<Key>,
}

impl Balancer {
    /// Reads the maps. Nothing is changed before frontends are updated, removed or pruned.
    pub(crate) fn restore(maps: Arc<dyn LbMaps>) -> Result<Balancer, MapError> {
        let mirror = Mirror::load(maps)?;
        let mut balancer = Balancer {
            mirror,
            ids: Ids::new(MAX_FRONTEND),
            frontends: HashMap::new(),
            backends: Backends::new(),
            wildcards: HashMap::new(),
            stray_slots: HashMap::new(),
            last_table: LastTable::default(),
            expansions: HashMap::new(),
            quarantined: HashMap::new(),
            of_any_protocol: HashMap::new(),
        };
        balancer.take_over();
        Ok(balancer)
    }

    fn take_over(&mut self) {
        let mut masters: Vec<(LbAddress, u16)> = Vec::new();
        let mut slots: Vec<(LbAddress, u16, LbService)> = Vec::new();
        let mut backends = Vec::new();
        let mut states = HashMap::new();
        let (mut matches, mut ranges) = (Vec::new(), Vec::new());
        let mut inactive: HashMap<LbAddress, (u16, u16)> = HashMap::new();
        for (key, value) in self.mirror.rows() {
            match (key, value) {
                (Key::Service(address, 0), Some(Value::Service(row))) if row.rev_nat_index != 0 => {
                    masters.push((*address, u16::from_be(row.rev_nat_index)));
                    if row.qcount > 0 {
                        inactive.insert(*address, (row.count, row.count.saturating_add(row.qcount)));
                    }
                }
                (Key::Service(address, slot @ 1..), Some(Value::Service(row))) => {
                    slots.push((*address, *slot, *row));
                }
                (Key::Backend(_, id), Some(Value::Backend(row))) => {
                    backends.push((*id, *row));
                    states.insert(*id, state(row.state));
                }
                (Key::AffinityMatch(id, backend), _) => matches.push((*id, *backend)),
                (Key::SourceRange(id, range), _) => ranges.push((*id, *range)),
                (Key::ReverseNat(_, id) | Key::Maglev(_, id), _) => self.ids.seen((*id).into()),
                _ => {}
            }
        }
        backends.sort();
        for (id, row) in backends {
            self.backends.restore(id, row);
        }
        masters.sort();
        let mut by_id = HashMap::new();
        for (address, id) in masters {
            // Rows of versions that did not tell protocols apart give their numbers to those that come.
            let known = address.protocol != Protocol::Any;
            if !known && self.ids.reserve(id.into()) {
                self.of_any_protocol.insert(address, id);
            }
            if known && self.ids.reserve(id.into()) {
                by_id.insert(id, address);
                self.frontends.insert(address, Record { id, restored: true, ..Record::default() });
            }
        }
        let mut found: HashMap<LbAddress, u16> = HashMap::new();
        for (address, ..) in &slots {
            *found.entry(*address).or_default() += 1;
        }
        inactive.retain(|address, (_, all)| found.get(address) == Some(all));
        for (address, slot, row) in slots {
            // Those that were leaving say so again themselves; an active one behind the count was unhealthy.
            if inactive.get(&address).is_some_and(|(count, _)| slot > *count)
                && states.get(&row.backend_id) == Some(&BackendState::Active)
                && let Some(backend) = self.backends.address(row.backend_id)
            {
                self.quarantined.entry(address).or_default().insert(backend);
            }
            self.backends.seen(row.backend_id);
            self.ids.seen(u16::from_be(row.rev_nat_index).into());
            match self.frontends.get_mut(&address) {
                Some(record) => {
                    record.slots = record.slots.max(slot);
                    let state = states.get(&row.backend_id).copied().unwrap_or_default();
                    if self.backends.hold_restored(row.backend_id, record.id, state) {
                        record.backends.insert(row.backend_id);
                    }
                }
                None => {
                    let highest = self.stray_slots.entry(address).or_default();
                    *highest = slot.max(*highest);
                }
            }
        }
        for (id, backend) in matches {
            self.ids.seen(id.into());
            self.backends.seen(backend);
            if let Some(record) = by_id.get(&id).and_then(|address| self.frontends.get_mut(address)) {
                record.matches.insert(backend);
            }
        }
        for (id, range) in ranges {
            self.ids.seen(id.into());
            if let Some(record) = by_id.get(&id).and_then(|address| self.frontends.get_mut(address)) {
                record.ranges.insert(range);
            }
        }
    }

    /// How many frontends of an earlier run nobody has asked for yet.
    pub(crate) fn restored(&self) -> usize {
        self.frontends.values().filter(|record| record.restored).count()
    }

    /// Deletes what no frontend has asked for, and tells which frontends have lost rows to somebody else.
    pub(crate) fn prune(&mut self) -> Result<Pruned, MapError> {
        let unclaimed: Vec<LbAddress> = self
            .frontends
            .iter()
            .filter(|(_, record)| record.restored)
            .map(|(address, _)| *address)
            .collect();
        self.of_any_protocol.drain().for_each(|(_, id)| self.ids.give_back(id.into()));
        let mut result = self.remove(&unclaimed).into_iter().collect::<Result<(), _>>();
        self.backends.drop_all_unused();
        result = result.and(self.settle());
        let changed = self.mirror.reload()?;
        let owned = self.owned();
        let strangers: Vec<Key> =
            self.mirror.rows().map(|(key, _)| *key).filter(|key| !owned.contains_key(key)).collect();
        // A frontend's own row goes before those it leads to.
        let (masters, others): (Vec<Key>, Vec<Key>) =
            strangers.into_iter().partition(|key| matches!(key, Key::Service(_, 0)));
        let count = masters.len() + others.len();
        result = result.and(self.mirror.delete(masters)).and_then(|()| self.mirror.delete(others));
        self.stray_slots.clear();
        if count > 0 {
            tracing::info!(count, "Deleted load balancer rows that belong to no service");
        }
        let hurt = changed.iter().filter_map(|key| owned.get(key)).flatten().copied().collect();
        result.map(|()| Pruned { hurt, changed })
    }

    /// All rows that are somebody's, with the frontends they serve.
    fn owned(&self) -> HashMap<Key, Vec<LbAddress>> {
        let mut owned: HashMap<Key, Vec<LbAddress>> = HashMap::new();
        let backends: HashMap<u32, Key> = self
            .backends
            .rows()
            .filter_map(|(key, _)| match key {
                Key::Backend(_, id) => Some((id, key)),
                _ => None,
            })
            .collect();
        for (address, record) in &self.frontends {
            let mut keys: BTreeSet<Key> = record.rows(*address).collect();
            keys.extend(record.backends.iter().filter_map(|id| backends.get(id)));
            keys.extend(self.wildcard(address.ip).map(|(key, _)| key));
            for key in keys {
                owned.entry(key).or_default().push(*address);
            }
        }
        owned
    }
}

pub(crate) fn state(kernel: u8) -> BackendState {
    match kernel {
        lb_backend_state::ACTIVE => BackendState::Active,
        lb_backend_state::TERMINATING => BackendState::Terminating,
        lb_backend_state::QUARANTINED => BackendState::Quarantined,
        _ => BackendState::Maintenance,
    }
}
