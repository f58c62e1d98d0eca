//! Maglev tables in the kernel: a map of maps, each with one table as its only value.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use bpf::{Map, MapSpec, RawMap, UpdateMode, bytes_of, values_of};
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
    /// Opens or creates the pinned map, the one that the programs are loaded with.
    pub(crate) fn pinned(maps: &Maps, family: Family) -> Result<MaglevMap, MapError> {
        let name = LbMap::Maglev(family).name();
        let outer = maps.shared(name)?.ok_or_else(|| format!("there is no map {name}"))?;
        MaglevMap::of(outer, &spec(maps.specs(), family)?)
    }

    /// Creates a map without a pin: the kernel frees it when this value is dropped.
    pub(crate) fn unpinned(specs: &Specs, family: Family) -> Result<MaglevMap, MapError> {
        let spec = spec(specs, family)?;
        MaglevMap::of(RawMap::create(&spec)?, &spec)
    }

    fn of(outer: RawMap, spec: &MapSpec) -> Result<MaglevMap, MapError> {
        let layout = spec.inner.ok_or_else(|| format!("map {} has no tables", spec.name))?;
        Ok(MaglevMap { outer: Map::new(outer)?, inner: MapSpec { name: INNER.into(), layout, inner: None } })
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

fn spec(specs: &Specs, family: Family) -> Result<MapSpec, MapError> {
    let name = LbMap::Maglev(family).name();
    Ok(specs.find(name).ok_or_else(|| format!("there is no map {name}"))?)
}
