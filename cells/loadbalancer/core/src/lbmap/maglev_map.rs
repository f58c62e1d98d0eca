//! Maglev tables in the kernel: a map of maps, each with one table as its only value.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use bpf::{Layout, Map, MapFlags, MapSpec, MapType, RawMap, UpdateMode, bytes_of, values_of};
use maps::{Maps, Specs};

use crate::lbmap::maglev::digest;
use crate::lbmap::rows::{Family, Key, LbMap, MapError, Value};

/// The name of the inner maps, as in Cilium.
const INNER: &str = "cilium_maglev_inner";

/// The tables of one family.
pub(crate) struct MaglevMap {
    /// From ids of frontends, big endian, to the maps with their tables.
    outer: Map<u16, u32>,
    inner: MapSpec,
}

impl MaglevMap {
    /// Opens or creates the pinned map with tables of this size. A map with tables of another size is replaced by an
    /// empty one.
    pub(crate) fn pinned(maps: &Maps, family: Family, size: u32) -> Result<MaglevMap, MapError> {
        let spec = spec(maps.specs(), family, size)?;
        let (outer, _) = maps.fs().open_or_create(&spec)?;
        let map = MaglevMap::of(outer, size)?;
        match map.try_size() {
            Ok(()) => Ok(map),
            Err(_) => MaglevMap::of(maps.fs().remake(&spec)?, size),
        }
    }

    /// Creates a map without a pin: the kernel frees it when this value is dropped.
    pub(crate) fn unpinned(specs: &Specs, family: Family, size: u32) -> Result<MaglevMap, MapError> {
        MaglevMap::of(RawMap::create(&spec(specs, family, size)?)?, size)
    }

    fn of(outer: RawMap, size: u32) -> Result<MaglevMap, MapError> {
        let layout = inner(size);
        Ok(MaglevMap { outer: Map::new(outer)?, inner: MapSpec { name: INNER.into(), layout, inner: None } })
    }

    /// Checks the size of the tables. The kernel does not report it, but refuses an inner map of another size; no
    /// frontend has the id 0 that the probe uses.
    fn try_size(&self) -> Result<(), MapError> {
        self.set(&[(0, RawMap::create(&self.inner)?)])?;
        self.outer.delete(&0)?;
        Ok(())
    }

    /// Sets several tables in one batch, because each system call on a map of maps waits for a grace period of the
    /// kernel: 8 ms.
    fn set(&self, tables: &[(u16, RawMap)]) -> Result<(), MapError> {
        let keys: Vec<u16> = tables.iter().map(|(id, _)| id.to_be()).collect();
        let fds: Vec<u32> = tables.iter().map(|(_, map)| map.as_fd().as_raw_fd() as u32).collect();
        Ok(self.outer.raw().update_batch(bytes_of(&keys), bytes_of(&fds))?)
    }

    /// Writes tables by the ids of frontends. Each is replaced atomically: a packet sees either the previous one or
    /// this one.
    pub(crate) fn put(&self, tables: &[(u16, &[u32])]) -> Result<(), MapError> {
        let filled = tables.iter().map(|(id, table)| {
            let map = RawMap::create(&self.inner)?;
            map.update(bytes_of(&[0_u32]), bytes_of(table), UpdateMode::Any)?;
            Ok((*id, map))
        });
        self.set(&filled.collect::<Result<Vec<_>, MapError>>()?)
    }

    pub(crate) fn delete(&self, ids: &[u16]) -> Result<(), MapError> {
        let keys: Vec<u16> = ids.iter().map(|id| id.to_be()).collect();
        if !keys.is_empty() {
            self.outer.delete_batch(&keys)?;
        }
        Ok(())
    }

    pub(crate) fn table(&self, id: u16) -> Result<Option<Arc<[u32]>>, MapError> {
        self.outer.lookup(&id.to_be())?.map(read).transpose()
    }

    /// Returns all tables as entries.
    pub(crate) fn rows(&self, family: Family) -> Result<Vec<(Key, Value)>, MapError> {
        let row = |(id, map): (u16, u32)| {
            Ok((Key::Maglev(family, u16::from_be(id)), Value::Maglev(digest(&read(map)?))))
        };
        self.outer.entries()?.into_iter().map(row).collect()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.outer.raw().layout().max_entries as usize
    }
}

/// Returns the table in an inner map by the map's kernel id.
fn read(map: u32) -> Result<Arc<[u32]>, MapError> {
    let map = RawMap::open_id(map)?;
    let mut value = vec![0; map.value_len()];
    map.lookup(bytes_of(&[0_u32]), &mut value)?;
    Ok(values_of(&value).into())
}

fn inner(size: u32) -> Layout {
    Layout {
        map_type: MapType::Array,
        key_size: 4,
        value_size: 4 * size,
        max_entries: 1,
        flags: MapFlags::NONE,
    }
}

fn spec(specs: &Specs, family: Family, size: u32) -> Result<MapSpec, MapError> {
    let name = LbMap::Maglev(family).name();
    let spec = specs.find(name).ok_or_else(|| format!("there is no map {name}"))?;
    Ok(spec.with_inner(inner(size)))
}
