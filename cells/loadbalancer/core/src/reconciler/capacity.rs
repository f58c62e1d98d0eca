//! Frontends in nearly full maps: entries are counted, and a frontend's own former backends are evicted for new ones.

use std::collections::BTreeMap;

use datapath_abi::LbService;

use crate::lbmap::rows::{Family, Key, LbMap, Value};
use crate::model::numbers::difference;
use crate::reconciler::balancer::{Balancer, UpsertError};
use crate::reconciler::desired::Desired;

impl Balancer {
    /// Fails if a map has no capacity for the entries that the frontend lacks: a service is written as a whole or not
    /// at all.
    pub(crate) fn ensure_capacity(&mut self, desired: &Desired) -> Result<(), UpsertError> {
        let full = match self.fits(desired) {
            Err(full @ UpsertError::Full { .. }) => full,
            other => return other,
        };
        match full {
            UpsertError::Full { map: LbMap::Backends(_), missing, .. }
                if self.evict_own_backends(desired, missing)? =>
            {
                self.fits(desired)
            }
            full => Err(full),
        }
    }

    fn fits(&self, desired: &Desired) -> Result<(), UpsertError> {
        let address = desired.address;
        let family = Family::of(address.ip);
        let id = self.mirror.store.frontend(&address).map(|record| record.id);
        let mut keys: Vec<Key> = (0..=desired.slots.len() as u16).map(|n| Key::Service(address, n)).collect();
        keys.extend(desired.wildcard.map(|_| Key::wildcard(address.ip)));
        // Entries without an assigned id are new.
        let mut new: BTreeMap<LbMap, usize> = BTreeMap::new();
        for (index, (backend, _)) in desired.slots.iter().chain(&desired.without_slot).enumerate() {
            let number = self.mirror.store.backends.id(backend);
            match number {
                Some(number) => keys.push(Key::Backend(family, number)),
                None => *new.entry(LbMap::Backends(family)).or_default() += 1,
            }
            match (id, number) {
                _ if index >= usize::from(desired.matches) => {}
                (Some(id), Some(number)) => keys.push(Key::AffinityMatch(id, number)),
                _ => *new.entry(LbMap::AffinityMatch).or_default() += 1,
            }
        }
        match id {
            Some(id) => {
                keys.push(Key::ReverseNat(family, id));
                keys.extend(desired.ranges.iter().map(|range| Key::SourceRange(id, *range)));
                keys.extend(desired.table.as_ref().map(|_| Key::Maglev(family, id)));
            }
            None => {
                new.insert(LbMap::ReverseNat(family), 1);
                new.insert(LbMap::SourceRanges(family), desired.ranges.len());
                new.insert(LbMap::Maglev(family), usize::from(desired.table.is_some()));
            }
        }
        for key in keys.iter().filter(|key| !self.mirror.has(key)) {
            *new.entry(key.map()).or_default() += 1;
        }
        for (map, count) in new {
            let missing = count.saturating_sub(self.mirror.free(map));
            if missing > 0 {
                return Err(UpsertError::Full { map, capacity: self.mirror.capacity(map), missing });
            }
        }
        Ok(())
    }

    /// Evicts the frontend's former backends from the maps before its new ones are written, if that frees enough
    /// capacity: for a moment it has fewer backends, which is better than keeping stale ones for ever. Returns false if
    /// it would not suffice.
    fn evict_own_backends(&mut self, desired: &Desired, missing: usize) -> Result<bool, UpsertError> {
        let address = desired.address;
        let Some(record) = self.mirror.store.frontend(&address) else { return Ok(false) };
        let id = record.id;
        let wanted = desired.slots.iter().chain(&desired.without_slot);
        let wanted: Vec<u32> =
            wanted.filter_map(|(backend, _)| self.mirror.store.backends.id(backend)).collect();
        let leaving = difference(record.backends(), &wanted);
        if leaving.iter().filter(|backend| self.mirror.store.backends.is_only_of(**backend, id)).count()
            < missing
        {
            return Ok(false);
        }
        let slots = record.slots;
        if let Some(Value::Service(old)) = self.mirror.get(&Key::master(address))? {
            let none = LbService { count: 0, qcount: 0, ..old };
            self.mirror.write(vec![(Key::master(address), Value::Service(none))])?;
        }
        let mut keys: Vec<Key> = (1..=slots).map(|slot| Key::Service(address, slot)).collect();
        keys.extend(leaving.iter().map(|backend| Key::AffinityMatch(id, *backend)));
        self.mirror.delete(keys)?;
        if let Some(record) = self.mirror.store.frontend_mut(&address) {
            let kept =
                |ids: &[u32]| ids.iter().copied().filter(|id| !leaving.contains(id)).collect::<Vec<_>>();
            record.slots = 0;
            record.set_backends(&kept(record.backends()));
            record.set_matches(&kept(record.matches()));
        }
        leaving.iter().for_each(|backend| self.mirror.store.backends.release(*backend, id));
        self.flush_backends()?;
        Ok(true)
    }
}
