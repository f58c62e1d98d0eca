//! Memory-efficient storage of the entries of all maps: slots of a frontend together, others by their keys.

use std::net::IpAddr;

use datapath_abi::LbService;
use smallvec::SmallVec;

use crate::lbmap::rows::{BackendValue, Family, Key, LbMap, Value};
use crate::model::address::LbAddress;
use crate::model::fast_map::FastMap;

/// A slot farther than this beyond the others is stored separately.
const GAP: usize = 8;

/// The known content of a slot's entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Slot {
    /// No entry in this list.
    #[default]
    Missing,
    /// An entry that may exist.
    Unsure,
    /// An entry that exists.
    Row(LbService),
}

impl Slot {
    fn known(self) -> Option<Option<LbService>> {
        match self {
            Slot::Missing => None,
            Slot::Unsure => Some(None),
            Slot::Row(row) => Some(Some(row)),
        }
    }
}

/// Values by key; `None` for an entry that may exist.
#[derive(Default)]
pub(crate) struct Store {
    /// By slot, from 0 on.
    slots: FastMap<LbAddress, SmallVec<[Slot; 2]>>,
    backends: FastMap<(Family, u32), Option<BackendValue>>,
    reverse: FastMap<(Family, u16), Option<(IpAddr, u16)>>,
    /// All other entries, and slots far beyond the others.
    others: FastMap<Key, Option<Value>>,
    counts: [usize; LbMap::COUNT],
}

impl Store {
    /// Returns the entry, or `Some(None)` if it may exist.
    pub(crate) fn get(&self, key: &Key) -> Option<Option<Value>> {
        match key {
            Key::Service(address, slot) => match self.slots(address).get(usize::from(*slot)) {
                Some(Slot::Missing) | None => self.other(key),
                Some(slot) => slot.known().map(|row| row.map(Value::Service)),
            },
            Key::Backend(family, id) => {
                self.backends.get(&(*family, *id)).map(|known| known.map(Value::Backend))
            }
            Key::ReverseNat(family, id) => {
                let known = self.reverse.get(&(*family, *id))?;
                Some(known.map(|(ip, port)| Value::ReverseNat(ip, port)))
            }
            _ => self.other(key),
        }
    }

    fn other(&self, key: &Key) -> Option<Option<Value>> {
        if self.others.is_empty() { None } else { self.others.get(key).copied() }
    }

    /// Returns the known slots of an address, from 0 on; for missing ones use [`get`](Self::get).
    pub(crate) fn slots(&self, address: &LbAddress) -> &[Slot] {
        self.slots.get(address).map_or(&[], |slots| slots)
    }

    /// Sets an entry; false if it existed, or may have.
    pub(crate) fn insert(&mut self, key: Key, value: Option<Value>) -> bool {
        self.set(key, value).is_none()
    }

    /// Sets an entry to a value; returns the previous result of [`get`](Self::get).
    pub(crate) fn replace(&mut self, key: Key, value: Value) -> Option<Option<Value>> {
        self.set(key, Some(value))
    }

    fn set(&mut self, key: Key, value: Option<Value>) -> Option<Option<Value>> {
        let before = match (key, value) {
            (Key::Service(address, slot), None | Some(Value::Service(_))) => {
                let row = match value {
                    Some(Value::Service(row)) => Slot::Row(row),
                    _ => Slot::Unsure,
                };
                self.set_slot(address, slot, row)
            }
            (Key::Backend(family, id), None | Some(Value::Backend(_))) => {
                let row = match value {
                    Some(Value::Backend(row)) => Some(row),
                    _ => None,
                };
                self.backends.insert((family, id), row).map(|before| before.map(Value::Backend))
            }
            (Key::ReverseNat(family, id), None | Some(Value::ReverseNat(..))) => {
                let row = match value {
                    Some(Value::ReverseNat(ip, port)) => Some((ip, port)),
                    _ => None,
                };
                let before = self.reverse.insert((family, id), row);
                before.map(|before| before.map(|(ip, port)| Value::ReverseNat(ip, port)))
            }
            (key, value) => self.others.insert(key, value),
        };
        self.counts[key.map().index()] += usize::from(before.is_none());
        before
    }

    fn set_slot(&mut self, address: LbAddress, slot: u16, row: Slot) -> Option<Option<Value>> {
        let at = usize::from(slot);
        let key = Key::Service(address, slot);
        let near = at < GAP || at < self.slots(&address).len() + GAP;
        if !near {
            let value = row.known().flatten().map(Value::Service);
            return self.others.insert(key, value);
        }
        let slots = self.slots.entry(address).or_default();
        if at >= slots.len() {
            slots.resize(at + 1, Slot::Missing);
        }
        let before = std::mem::replace(&mut slots[at], row).known().map(|row| row.map(Value::Service));
        let far = if self.others.is_empty() { None } else { self.others.remove(&key) };
        before.or(far)
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, key: &Key) {
        let known = match key {
            Key::Service(address, slot) => self.remove_slot(address, *slot),
            Key::Backend(family, id) => self.backends.remove(&(*family, *id)).is_some(),
            Key::ReverseNat(family, id) => self.reverse.remove(&(*family, *id)).is_some(),
            _ => self.others.remove(key).is_some(),
        };
        self.counts[key.map().index()] -= usize::from(known);
    }

    fn remove_slot(&mut self, address: &LbAddress, slot: u16) -> bool {
        let far = !self.others.is_empty() && self.others.remove(&Key::Service(*address, slot)).is_some();
        let Some(slots) = self.slots.get_mut(address) else { return far };
        let before = slots.get_mut(usize::from(slot)).map(std::mem::take).unwrap_or_default();
        let used = slots.iter().rposition(|slot| *slot != Slot::Missing).map_or(0, |last| last + 1);
        slots.truncate(used);
        if used == 0 {
            self.slots.remove(address);
        } else if slots.capacity() > 4 * used {
            slots.shrink_to_fit();
        }
        before != Slot::Missing || far
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
        let slots = self.slots.iter().flat_map(|(address, slots)| {
            (0u16..).zip(slots).filter_map(|(slot, row)| {
                let row = row.known()?;
                Some((Key::Service(*address, slot), row.map(Value::Service)))
            })
        });
        let backends = self.backends.iter();
        let backends =
            backends.map(|((family, id), row)| (Key::Backend(*family, *id), row.map(Value::Backend)));
        let reverse = self.reverse.iter().map(|((family, id), row)| {
            (Key::ReverseNat(*family, *id), row.map(|(ip, port)| Value::ReverseNat(ip, port)))
        });
        let others = self.others.iter().map(|(key, row)| (*key, *row));
        slots.chain(backends).chain(reverse).chain(others)
    }
}

impl From<Vec<(Key, Value)>> for Store {
    fn from(rows: Vec<(Key, Value)>) -> Store {
        let mut store = Store::default();
        // Reserved at once, because growing hash tables are rehashed repeatedly.
        let count = |of: fn(&Key) -> bool| rows.iter().filter(|(key, _)| of(key)).count();
        store.slots.reserve(count(|key| matches!(key, Key::Service(_, 0))));
        store.backends.reserve(count(|key| matches!(key, Key::Backend(..))));
        store.reverse.reserve(count(|key| matches!(key, Key::ReverseNat(..))));
        for (key, value) in rows {
            store.insert(key, Some(value));
        }
        store
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::model::address::Protocol;

    fn key() -> impl Strategy<Value = Key> {
        let address = |last: u8| LbAddress::new([10, 0, 0, last].into(), 80, Protocol::Tcp);
        prop_oneof![
            4 => (0u8..3, prop_oneof![0u16..6, 6u16..40, Just(60_000)])
                .prop_map(move |(last, slot)| Key::Service(address(last), slot)),
            1 => (0u32..4).prop_map(|id| Key::Backend(Family::V4, id)),
            1 => (0u16..4).prop_map(|id| Key::ReverseNat(Family::V6, id)),
            1 => (0u16..4).prop_map(|id| Key::AffinityMatch(id, 1)),
        ]
    }

    fn value(key: &Key, number: u16) -> Value {
        match key {
            Key::Service(..) => Value::Service(LbService { count: number, ..LbService::default() }),
            Key::Backend(..) => {
                let address = LbAddress::new([10, 1, 0, 1].into(), number, Protocol::Tcp);
                Value::Backend(BackendValue { address, state: 0, zone: 0 })
            }
            Key::ReverseNat(..) => Value::ReverseNat([10, 2, 0, 1].into(), number),
            _ => Value::Present,
        }
    }

    proptest! {
        #[test]
        fn rows_are_those_of_a_plain_map(steps in proptest::collection::vec((key(), 0u8..4, any::<u16>()), 0..60)) {
            let (mut store, mut plain) = (Store::default(), BTreeMap::new());
            for (key, step, number) in steps {
                match step {
                    0 => {
                        store.remove(&key);
                        plain.remove(&key);
                    }
                    1 => {
                        let row = value(&key, number);
                        prop_assert_eq!(store.replace(key, row), plain.insert(key, Some(row)));
                    }
                    step => {
                        let row = (step == 2).then(|| value(&key, number));
                        prop_assert_eq!(store.insert(key, row), plain.insert(key, row).is_none());
                    }
                }
                prop_assert_eq!(store.get(&key), plain.get(&key).copied());
                prop_assert_eq!(store.len(), plain.len());
            }
            prop_assert_eq!(store.iter().collect::<BTreeMap<_, _>>(), plain.clone());
            for key in plain.keys() {
                let of_map = plain.keys().filter(|other| other.map() == key.map()).count();
                prop_assert_eq!(store.count(key.map()), of_map);
            }
            plain.keys().for_each(|key| store.remove(key));
            prop_assert_eq!((store.len(), store.slots.len()), (0, 0));
        }
    }
}
