//! A copy of the maps' entries, so that only differences are written.

use std::collections::HashSet;
use std::sync::Arc;

use datapath_abi::LbService;

use crate::lbmap::levels::Levels;
use crate::lbmap::maglev::digest;
use crate::lbmap::rows::{Key, LbMap, LbMaps, MapError, Value};
use crate::model::address::LbAddress;
use crate::reconciler::store::Store;

/// The maps, with a copy of their entries.
pub(crate) struct Mirror {
    maps: Arc<dyn LbMaps>,
    /// `None` for an entry whose last write or delete failed: it may exist.
    pub(crate) store: Store,
    levels: Arc<Levels>,
}

impl Mirror {
    /// Reads the maps.
    pub(crate) fn load(maps: Arc<dyn LbMaps>) -> Result<Mirror, MapError> {
        let levels = Arc::<Levels>::default();
        levels.set_capacities(|map| maps.capacity(map));
        let store = maps.rows()?.into();
        let mirror = Mirror { maps, store, levels };
        mirror.report_levels();
        Ok(mirror)
    }

    /// Reads the maps again; returns the entries that other programs have changed.
    pub(crate) fn reload(&mut self) -> Result<HashSet<Key>, MapError> {
        let changed = self.store.reload(self.maps.rows()?);
        self.report_levels();
        Ok(changed)
    }

    /// Iterates over all entries; those that may exist have no value.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (Key, Option<Value>)> {
        self.store.iter()
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.store.len()
    }

    /// Whether the entry exists or may exist.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.store.get(key).is_some()
    }

    /// Returns the entry; reads it from the kernel if a failure has left it unknown.
    pub(crate) fn get(&mut self, key: &Key) -> Result<Option<Value>, MapError> {
        match self.store.get(key) {
            None => Ok(None),
            Some(Some(value)) => Ok(Some(value)),
            Some(None) => {
                let value = self.maps.get(key)?;
                match value {
                    Some(value) => _ = self.store.set(*key, Some(value)),
                    None => self.store.remove(key),
                }
                Ok(value)
            }
        }
    }

    /// Returns the free capacity of a map.
    pub(crate) fn free(&self, map: LbMap) -> usize {
        self.capacity(map).saturating_sub(self.store.count(map))
    }

    /// Returns the capacity of a map.
    pub(crate) fn capacity(&self, map: LbMap) -> usize {
        self.maps.capacity(map)
    }

    /// Writes the entries that differ from the copy.
    pub(crate) fn write(&mut self, mut rows: Vec<(Key, Value)>) -> Result<(), MapError> {
        rows.retain(|(key, value)| self.store.set(*key, Some(*value)) != Some(Some(*value)));
        self.put(rows)
    }

    /// Writes the entries of slots 1, 2, ... of frontends that differ from the copy.
    pub(crate) fn write_slots<Slots: Iterator<Item = LbService>>(
        &mut self,
        frontends: impl Iterator<Item = (LbAddress, Slots)>,
    ) -> Result<(), MapError> {
        let mut rows = Vec::with_capacity(frontends.size_hint().0);
        for (address, slots) in frontends {
            self.store.replace_slots(address, slots, &mut rows);
        }
        self.put(rows)
    }

    /// Writes entries that the copy has already.
    fn put(&mut self, rows: Vec<(Key, Value)>) -> Result<(), MapError> {
        if rows.is_empty() {
            return Ok(());
        }
        let result = self.maps.put(&rows);
        self.written(rows.into_iter().map(|(key, _)| key), result)
    }

    /// Writes the Maglev tables that differ from the copy.
    pub(crate) fn write_tables(&mut self, mut tables: Vec<(Key, Arc<[u32]>)>) -> Result<(), MapError> {
        tables.retain(|(key, table)| {
            let value = Value::Maglev(digest(table));
            self.store.set(*key, Some(value)) != Some(Some(value))
        });
        if tables.is_empty() {
            return Ok(());
        }
        let result = self.maps.put_tables(&tables);
        self.written(tables.into_iter().map(|(key, _)| key), result)
    }

    /// Marks entries as unknown if their write failed: a batch does not report how far it came.
    fn written(
        &mut self,
        keys: impl Iterator<Item = Key>,
        result: Result<(), MapError>,
    ) -> Result<(), MapError> {
        if result.is_err() {
            keys.for_each(|key| _ = self.store.set(key, None));
        }
        self.report_levels();
        result
    }

    /// Deletes the entries that exist.
    pub(crate) fn delete(&mut self, mut keys: Vec<Key>) -> Result<(), MapError> {
        keys.retain(|key| self.has(key));
        if keys.is_empty() {
            return Ok(());
        }
        // A failed batch may have deleted some: these are unknown until they are read or deleted again.
        let result = self.maps.delete(&keys);
        for key in keys {
            match result {
                Ok(()) => self.store.remove(&key),
                Err(_) => _ = self.store.set(key, None),
            }
        }
        self.report_levels();
        result
    }

    /// Returns the fill levels of the maps, which are updated with each change.
    pub(crate) fn levels(&self) -> Arc<Levels> {
        self.levels.clone()
    }

    fn report_levels(&self) {
        self.levels.report(|map| self.store.count(map));
    }
}
