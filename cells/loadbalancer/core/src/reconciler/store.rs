//! The entries of all maps, as they are known: with the records of their owners where these have them, others by their
//! keys.

use std::collections::HashSet;
use std::collections::hash_map::Entry;

use datapath_abi::LbService;

use crate::lbmap::rows::{BackendValue, Family, Key, LbMap, Value};
use crate::model::address::LbAddress;
use crate::model::fast_map::{FastMap, FastSet};
use crate::model::numbers::Numbers;
use crate::reconciler::backends::Backends;
use crate::reconciler::desired::Wildcard;
use crate::reconciler::record::{Record, Slot};
use crate::reconciler::reverse::ReverseNat;
use crate::reconciler::wildcards::Wildcards;

/// A slot farther than this beyond the others is stored separately.
const GAP: usize = 8;

/// Values by key; `None` for an entry that may exist.
#[derive(Default)]
pub(crate) struct Store {
    /// Frontends and their slots, by address.
    records: FastMap<LbAddress, Record>,
    pub(crate) backends: Backends,
    wildcards: Wildcards,
    reverse: ReverseNat,
    /// Entries of other maps, and those that have no place above.
    others: FastMap<Key, Option<Value>>,
    counts: [usize; LbMap::COUNT],
}

/// A known value, or `Some(None)` for an entry that may exist.
type Known = Option<Option<Value>>;

impl Store {
    /// Returns the entry, or `Some(None)` if it may exist.
    pub(crate) fn get(&self, key: &Key) -> Known {
        let known = match key {
            Key::Service(address, slot) if Wildcards::is_key(address, *slot) => {
                self.wildcards.copied(address.ip)
            }
            Key::Service(address, slot) => {
                let record = self.records.get(address);
                record.and_then(|record| value(record.slot((*slot).into())))
            }
            Key::Backend(family, id) => {
                return self.backends.copied(*family, *id).map(|known| known.map(Value::Backend));
            }
            Key::ReverseNat(family, id) => {
                let known = self.reverse.get(*family, *id);
                known.map(|known| known.map(|(ip, port)| Value::ReverseNat(ip, port)))
            }
            _ => None,
        };
        known.or_else(|| if self.others.is_empty() { None } else { self.others.get(key).copied() })
    }

    /// Sets an entry to a value, or to `None` if it may exist; returns the previous result of [`get`](Self::get).
    pub(crate) fn set(&mut self, key: Key, value: Option<Value>) -> Known {
        let (is_stored, mut before) = self.place(&key, value);
        if !is_stored {
            let other = self.others.insert(key, value);
            before = before.or(other);
        } else if !self.others.is_empty() {
            before = before.or(self.others.remove(&key));
        }
        self.counts[key.map().index()] += usize::from(before.is_none());
        before
    }

    /// Stores an entry at the place for its key; returns whether it is stored there, and the value that the place had
    /// before.
    fn place(&mut self, key: &Key, new: Option<Value>) -> (bool, Known) {
        match (*key, new) {
            (Key::Service(address, slot), None | Some(Value::Service(_)))
                if Wildcards::is_key(&address, slot) =>
            {
                self.wildcards.set_copied(address.ip, new)
            }
            (Key::Service(address, slot), None | Some(Value::Service(_))) => {
                let slot = usize::from(slot);
                let content = match new {
                    Some(Value::Service(row)) => Slot::Row(row),
                    _ => Slot::Unsure,
                };
                let record = self.records.entry(address).or_default();
                let is_near = slot < GAP || slot < record.known_slots() + GAP;
                let (fits, before) = record.set_slot(slot, if is_near { content } else { Slot::Missing });
                if record.is_empty() {
                    self.records.remove(&address);
                }
                (fits && is_near, value(before))
            }
            (Key::Backend(family, id), None | Some(Value::Backend(_))) => {
                let row = match new {
                    Some(Value::Backend(row)) => Some(row),
                    _ => None,
                };
                let before = self.backends.set_copied(family, id, row);
                (true, before.map(|known| known.map(Value::Backend)))
            }
            (Key::ReverseNat(family, id), None | Some(Value::ReverseNat(..))) => {
                let row = match new {
                    Some(Value::ReverseNat(ip, port)) => Some((ip, port)),
                    _ => None,
                };
                let (is_stored, before) = self.reverse.set(family, id, row);
                (is_stored, before.map(|known| known.map(|(ip, port)| Value::ReverseNat(ip, port))))
            }
            _ => (false, None),
        }
    }

    /// Sets the entries of slots 1, 2, ... of a frontend; adds those that differ to `changed`. The record is looked up
    /// once for all of them.
    pub(crate) fn replace_slots(
        &mut self,
        address: LbAddress,
        slots: impl Iterator<Item = LbService>,
        changed: &mut Vec<(Key, Value)>,
    ) {
        let Some(record) = self.records.get_mut(&address) else {
            for (slot, row) in (1..).zip(slots) {
                let (key, value) = (Key::Service(address, slot), Value::Service(row));
                if self.set(key, Some(value)) != Some(Some(value)) {
                    changed.push((key, value));
                }
            }
            return;
        };
        let mut new = 0;
        for (slot, row) in (1u16..).zip(slots) {
            let known = record.slot(slot.into());
            if known == Slot::Row(row) {
                continue;
            }
            let (key, value) = (Key::Service(address, slot), Value::Service(row));
            let (fits, _) = record.set_slot(slot.into(), Slot::Row(row));
            let other = match fits {
                false => self.others.insert(key, Some(value)),
                true if known == Slot::Missing && !self.others.is_empty() => self.others.remove(&key),
                true => None,
            };
            new += usize::from(known == Slot::Missing && other.is_none());
            if other != Some(Some(value)) {
                changed.push((key, value));
            }
        }
        self.counts[LbMap::Services(Family::of(address.ip)).index()] += new;
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, key: &Key) {
        let is_known = match key {
            Key::Service(address, slot) if Wildcards::is_key(address, *slot) => {
                self.wildcards.remove_copied(address.ip).is_some()
            }
            Key::Service(address, slot) => match self.records.get_mut(address) {
                Some(record) => {
                    let (_, before) = record.set_slot((*slot).into(), Slot::Missing);
                    if record.is_empty() {
                        self.records.remove(address);
                    }
                    before != Slot::Missing
                }
                None => false,
            },
            Key::Backend(family, id) => self.backends.remove_copied(*family, *id).is_some(),
            Key::ReverseNat(family, id) => self.reverse.remove(*family, *id).is_some(),
            _ => false,
        };
        let is_other = !self.others.is_empty() && self.others.remove(key).is_some();
        self.counts[key.map().index()] -= usize::from(is_known || is_other);
    }

    /// Replaces all entries; returns the keys of those that differ.
    pub(crate) fn reload(&mut self, rows: Vec<(Key, Value)>) -> HashSet<Key> {
        let present: FastSet<Key> = rows.iter().map(|(key, _)| *key).collect();
        let missing = self.iter().map(|(key, _)| key).filter(|key| !present.contains(key));
        let mut changed: HashSet<Key> = missing.collect();
        changed.iter().for_each(|key| self.remove(key));
        for (key, value) in rows {
            if self.set(key, Some(value)) != Some(Some(value)) {
                changed.insert(key);
            }
        }
        changed
    }

    /// Returns the number of entries of a map.
    pub(crate) fn count(&self, map: LbMap) -> usize {
        self.counts[map.index()]
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.counts.iter().sum()
    }

    /// Iterates over all entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, Option<Value>)> {
        let slots = self.records.iter().flat_map(|(address, record)| {
            (0..record.known_slots())
                .filter_map(|slot| Some((Key::Service(*address, slot as u16), value(record.slot(slot))?)))
        });
        let reverse = self.reverse.iter().map(|(family, id, known)| {
            (Key::ReverseNat(family, id), known.map(|(ip, port)| Value::ReverseNat(ip, port)))
        });
        let others = self.others.iter().map(|(key, row)| (*key, *row));
        slots.chain(self.wildcards.iter()).chain(self.backends.all_copied()).chain(reverse).chain(others)
    }
}

/// The frontends.
impl Store {
    /// Returns what is known of an address, whether it is of a frontend or not.
    pub(crate) fn record(&self, address: &LbAddress) -> Option<&Record> {
        self.records.get(address)
    }

    /// Returns the record of a frontend.
    pub(crate) fn frontend(&self, address: &LbAddress) -> Option<&Record> {
        self.records.get(address).filter(|record| record.is_frontend())
    }

    /// Returns the record of a frontend.
    pub(crate) fn frontend_mut(&mut self, address: &LbAddress) -> Option<&mut Record> {
        self.records.get_mut(address).filter(|record| record.is_frontend())
    }

    /// Returns the record of a frontend, and the backends. If there is none, it begins with the id and the highest
    /// slot that `begin` returns.
    pub(crate) fn frontend_or_begin(
        &mut self,
        address: LbAddress,
        begin: impl FnOnce() -> Option<(u16, u16)>,
    ) -> Option<(&mut Record, &mut Backends)> {
        let record = match self.records.entry(address) {
            Entry::Occupied(known) if known.get().is_frontend() => known.into_mut(),
            Entry::Occupied(known) => {
                let (id, slots) = begin()?;
                let record = known.into_mut();
                (record.id, record.slots) = (id, slots);
                record
            }
            Entry::Vacant(free) => {
                let (id, slots) = begin()?;
                free.insert(Record::new(id, slots))
            }
        };
        Some((record, &mut self.backends))
    }

    /// Iterates over all frontends.
    pub(crate) fn frontends(&self) -> impl Iterator<Item = (&LbAddress, &Record)> {
        self.records.iter().filter(|(_, record)| record.is_frontend())
    }

    /// Removes the record of a frontend, but not the copies of entries; returns its id and its backends.
    pub(crate) fn remove_frontend(&mut self, address: &LbAddress) -> Option<(u16, Numbers)> {
        self.desire_wildcard(address, None);
        let record = self.frontend_mut(address)?;
        let removed = (record.id, Numbers::from_slice(record.backends()));
        record.forget_frontend();
        if record.is_empty() {
            self.records.remove(address);
        }
        Some(removed)
    }

    /// Records whether a frontend desires the entry for all ports of its address; returns that entry, if any frontend
    /// does.
    pub(crate) fn desire_wildcard(
        &mut self,
        address: &LbAddress,
        wildcard: Option<Wildcard>,
    ) -> Option<(Key, Value)> {
        if let Some(record) = self.frontend_mut(address) {
            let before = std::mem::replace(&mut record.wildcard, wildcard);
            self.wildcards.change(address.ip, before, wildcard);
        }
        self.wildcards.row(address.ip)
    }

    pub(crate) fn wildcards(&self) -> &Wildcards {
        &self.wildcards
    }
}

impl From<Vec<(Key, Value)>> for Store {
    fn from(rows: Vec<(Key, Value)>) -> Store {
        let mut store = Store::default();
        // Reserved at once, because growing hash tables are rehashed repeatedly.
        let (mut wildcards, mut frontends) = (0, 0);
        let mut backends: Vec<(u32, BackendValue, Family)> = Vec::new();
        for row in &rows {
            match row {
                (Key::Service(address, 0), _) if Wildcards::is_key(address, 0) => wildcards += 1,
                (Key::Service(_, 0), _) => frontends += 1,
                (Key::Backend(family, id), Value::Backend(row)) => backends.push((*id, *row, *family)),
                _ => {}
            }
        }
        store.wildcards.reserve(wildcards);
        store.records.reserve(frontends);
        store.backends.reserve(backends.len());
        // In order, so that every restart resolves contradictory entries in the same way.
        backends.sort_unstable();
        for (id, row, family) in backends {
            store.counts[LbMap::Backends(family).index()] += 1;
            store.backends.restore(family, id, row);
        }
        for (key, value) in rows.into_iter().filter(|(key, _)| !matches!(key, Key::Backend(..))) {
            store.set(key, Some(value));
        }
        store
    }
}

fn value(slot: Slot) -> Known {
    slot.known().map(|row| row.map(Value::Service))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::model::address::Protocol;
    use crate::model::backend::BackendState;
    use crate::reconciler::desired::wildcard_row;

    fn address(last: u8) -> LbAddress {
        LbAddress::new([10, 0, 0, last].into(), 80, Protocol::Tcp)
    }

    fn key() -> impl Strategy<Value = Key> {
        prop_oneof![
            4 => (0u8..3, prop_oneof![0u16..6, 6u16..40, Just(60_000)])
                .prop_map(move |(last, slot)| Key::Service(address(last), slot)),
            2 => (0u8..3).prop_map(|last| Key::wildcard([10, 0, 0, last].into())),
            2 => (1u32..4, any::<bool>())
                .prop_map(|(id, v4)| Key::Backend(if v4 { Family::V4 } else { Family::V6 }, id)),
            1 => (0u16..4).prop_map(|id| Key::ReverseNat(Family::V6, id * 50)),
            1 => (0u16..4).prop_map(|id| Key::ReverseNat(Family::V4, id)),
            1 => (0u16..4).prop_map(|id| Key::AffinityMatch(id, 1)),
        ]
    }

    /// Returns values of all forms: those that this agent writes, and those of other programs.
    fn value(key: &Key, number: u16) -> Value {
        let (odd, flags) = (number % 2 == 1, (number / 2) as u8);
        match key {
            Key::Service(_, 0) if odd => {
                Value::Service(LbService { flags, flags2: 1, ..LbService::default() })
            }
            Key::Service(_, 0) => Value::Service(LbService { count: number, ..LbService::default() }),
            Key::Service(..) if odd => {
                let backend_id = [0, 1, u32::MAX][usize::from(number % 3)];
                Value::Service(LbService { backend_id, rev_nat_index: 7, flags, ..LbService::default() })
            }
            Key::Service(..) => {
                Value::Service(LbService { backend_id: 1, count: number, ..LbService::default() })
            }
            Key::Backend(..) => {
                let address = LbAddress::new([10, 1, 0, (number % 3) as u8].into(), 80, Protocol::Tcp);
                Value::Backend(BackendValue { address, state: flags, zone: 0 })
            }
            Key::ReverseNat(Family::V6, _) if odd => Value::ReverseNat([0; 16].into(), number),
            Key::ReverseNat(..) => Value::ReverseNat([10, 2, 0, 1].into(), number),
            _ => Value::Present,
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Remove(Key),
        Insert(Key, Option<u16>),
        /// Begins or removes the record of a frontend, with a number of backends.
        Frontend(u8, Option<u8>),
        Wildcard(u8, Option<Wildcard>),
        /// A frontend begins or ends to use a backend.
        Hold(u8, u16),
        Release(u32, u16),
        Reload(Vec<(Key, u16)>),
        /// The slots of an address are written.
        Slots(u8, Vec<u16>),
    }

    fn step() -> impl Strategy<Value = Step> {
        let kind = prop_oneof![Just(Wildcard::ClusterIp), Just(Wildcard::LoadBalancer)];
        prop_oneof![
            2 => key().prop_map(Step::Remove),
            6 => (key(), proptest::option::weighted(0.8, any::<u16>()))
                .prop_map(|(key, number)| Step::Insert(key, number)),
            2 => (0u8..3, proptest::option::of(0u8..6)).prop_map(|(last, count)| Step::Frontend(last, count)),
            2 => (0u8..3, proptest::option::of(kind)).prop_map(|(last, kind)| Step::Wildcard(last, kind)),
            2 => (0u8..3, 1u16..4).prop_map(|(last, frontend)| Step::Hold(last, frontend)),
            2 => (1u32..4, 1u16..4).prop_map(|(id, frontend)| Step::Release(id, frontend)),
            1 => proptest::collection::vec((key(), any::<u16>()), 0..8).prop_map(Step::Reload),
            2 => (0u8..3, proptest::collection::vec(any::<u16>(), 0..12))
                .prop_map(|(last, numbers)| Step::Slots(last, numbers)),
        ]
    }

    proptest! {
        /// Whatever becomes of the records that have them, entries are those of a plain map.
        #[test]
        fn rows_are_those_of_a_plain_map(steps in proptest::collection::vec(step(), 0..60)) {
            let (mut store, mut plain) = (Store::default(), BTreeMap::new());
            let mut frontends: BTreeMap<u8, (Vec<u32>, Option<Wildcard>)> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Remove(key) => {
                        store.remove(&key);
                        plain.remove(&key);
                    }
                    Step::Insert(key, Some(number)) => {
                        let row = value(&key, number);
                        prop_assert_eq!(store.set(key, Some(row)), plain.insert(key, Some(row)));
                    }
                    Step::Insert(key, None) => {
                        prop_assert_eq!(store.set(key, None), plain.insert(key, None));
                    }
                    Step::Frontend(last, Some(count)) => {
                        let backends: Vec<u32> = (1..=count.into()).collect();
                        let begin = || Some((u16::from(last) + 1, 0));
                        let (record, _) = store.frontend_or_begin(address(last), begin).unwrap();
                        record.set_backends(&backends);
                        record.set_matches(&backends);
                        frontends.entry(last).or_default().0 = backends;
                    }
                    Step::Frontend(last, None) => {
                        let removed = store.remove_frontend(&address(last));
                        let removed = removed.map(|(_, backends)| backends.to_vec());
                        prop_assert_eq!(removed, frontends.remove(&last).map(|(backends, _)| backends));
                    }
                    Step::Wildcard(last, wildcard) => {
                        if let Some((_, desired)) = frontends.get_mut(&last) {
                            *desired = wildcard;
                        }
                        store.desire_wildcard(&address(last), wildcard);
                    }
                    Step::Slots(last, numbers) => {
                        let keys = (1..=numbers.len() as u16).map(|slot| Key::Service(address(last), slot));
                        let rows = keys.zip(numbers).map(|(key, number)| (key, value(&key, number)));
                        let rows: Vec<(Key, Value)> = rows.collect();
                        let services = rows.iter().filter_map(|(_, value)| match value {
                            Value::Service(row) => Some(*row),
                            _ => None,
                        });
                        let mut changed = Vec::new();
                        store.replace_slots(address(last), services, &mut changed);
                        let mut differs = |(key, value): &(Key, Value)| {
                            plain.insert(*key, Some(*value)) != Some(Some(*value))
                        };
                        prop_assert_eq!(changed, rows.into_iter().filter(|row| differs(row)).collect::<Vec<_>>());
                    }
                    Step::Hold(last, frontend) => {
                        let address = LbAddress::new([10, 1, 0, last].into(), 80, Protocol::Tcp);
                        store.backends.hold(address, frontend, BackendState::Active).unwrap();
                    }
                    Step::Release(id, frontend) => store.backends.release(id, frontend),
                    Step::Reload(rows) => {
                        let rows = rows.into_iter().map(|(key, number)| (key, value(&key, number)));
                        let rows: BTreeMap<Key, Value> = rows.collect();
                        let now: BTreeMap<Key, Option<Value>> =
                            rows.iter().map(|(key, value)| (*key, Some(*value))).collect();
                        let keys: BTreeSet<Key> = plain.keys().chain(now.keys()).copied().collect();
                        let changed = keys.into_iter().filter(|key| plain.get(key) != now.get(key));
                        let changed: HashSet<Key> = changed.collect();
                        prop_assert_eq!(store.reload(rows.into_iter().collect()), changed);
                        plain = now;
                    }
                }
                prop_assert_eq!(store.iter().collect::<BTreeMap<_, _>>(), plain.clone());
                prop_assert_eq!((store.iter().count(), store.len()), (plain.len(), plain.len()));
                for (last, (backends, wildcard)) in &frontends {
                    let record = store.frontend(&address(*last)).unwrap();
                    prop_assert_eq!((record.backends(), record.matches()), (&backends[..], &backends[..]));
                    let row = wildcard.map(|wildcard| wildcard_row(address(*last).ip, wildcard.flags()));
                    prop_assert_eq!(store.wildcards().row(address(*last).ip), row);
                }
            }
            for key in plain.keys() {
                prop_assert_eq!(store.get(key), plain.get(key).copied());
                let of_map = plain.keys().filter(|other| other.map() == key.map()).count();
                prop_assert_eq!(store.count(key.map()), of_map);
            }
            plain.keys().for_each(|key| store.remove(key));
            frontends.keys().for_each(|last| _ = store.remove_frontend(&address(*last)));
            prop_assert_eq!((store.len(), store.records.len(), store.wildcards.len()), (0, 0, 0));
        }

        /// A start knows the entries of the maps, also of backends that contradict each other.
        #[test]
        fn a_store_begins_with_the_rows_of_the_maps(
            rows in proptest::collection::btree_map(key(), any::<u16>(), 0..40),
        ) {
            let rows: BTreeMap<Key, Value> =
                rows.into_iter().map(|(key, number)| (key, value(&key, number))).collect();
            let mut store = Store::from(rows.clone().into_iter().collect::<Vec<_>>());
            let known: BTreeMap<Key, Value> =
                store.iter().map(|(key, value)| (key, value.unwrap())).collect();
            prop_assert_eq!((&known, store.len(), store.iter().count()), (&rows, rows.len(), rows.len()));
            store.backends.drop_all_unused();
            prop_assert_eq!(store.iter().count(), rows.len());
        }
    }
}
