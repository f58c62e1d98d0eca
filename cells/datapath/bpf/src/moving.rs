//! The migration of a map to another layout while programs still write into the old one.
//!
//! Programs write connections, affinity and counters. Attached programs use the old map until they are
//! replaced, so entries are copied three times: when the new map is created, before programs are replaced, and
//! after that the entries that only the old map has. Until then the new map has a separate pin beside the old one's: a
//! start that finds both resumes the migration of the previous run.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::bpffs::{BpfFs, Origin, names_in, unpin};
use crate::error::{Error, Result};
use crate::raw_map::{RawMap, UpdateMode, possible_cpus};
use crate::spec::{Layout, MapSpec, MapType, Verdict};

/// The suffix of the pin of a map that will replace another one.
pub const MOVING: &str = "_next";

/// A map in migration: the new map, which will replace the old one.
#[derive(Debug)]
pub struct Move {
    pin: PathBuf,
    next: PathBuf,
    old: RawMap,
    new: RawMap,
}

impl MapType {
    /// Whether programs write the entries: these change at any time and the agent cannot restore them.
    pub fn is_written_by_programs(self) -> bool {
        self.is_lru() || self.is_per_cpu()
    }
}

impl BpfFs {
    /// Returns the maps that are migrating to another layout.
    pub fn moves(&self) -> Result<Vec<Move>> {
        let mut moves = Vec::new();
        for name in names_in(&self.globals())? {
            if let Some(of) = name.strip_suffix(MOVING) {
                let (pin, next) = (self.map(of), self.map(&name));
                moves.push(Move { old: RawMap::open(&pin)?, new: RawMap::open(&next)?, pin, next });
            }
        }
        Ok(moves)
    }

    /// Creates the map that will replace `old`, or continues with the one of an interrupted start.
    pub(crate) fn begin_move(&self, spec: &MapSpec, wanted: Layout, old: RawMap) -> Result<(RawMap, Origin)> {
        let pin = self.map(&spec.name);
        let next = next_of(&pin);
        if let Some(begun) = open(&next)? {
            if wanted.compare(&begun.layout()) == Verdict::Reuse {
                let entries = copy_missing(&old, &begun)?;
                return Ok((begun, Origin::Moving { entries }));
            }
            // The pending map is of a build with a third layout. Its programs may have written entries that no other
            // map has.
            copy_missing(&begun, &old)?;
            unpin(&next)?;
        }
        let entries = count(&old)?;
        if entries > capacity(wanted) {
            return Ok((old, Origin::Kept { entries }));
        }
        let new = RawMap::create(spec)?;
        copy_all(&old, &new)?;
        new.pin(&next)?;
        Ok((new, Origin::Moving { entries }))
    }

    /// Reverts the migration of an interrupted start when the previous layout is desired again. Its programs may have
    /// been attached already, so the roles of the two maps are exchanged.
    pub(crate) fn end_move(&self, spec: &MapSpec, wanted: RawMap) -> Result<(RawMap, Origin)> {
        let pin = self.map(&spec.name);
        let next = next_of(&pin);
        let Some(begun) = open(&next)? else { return Ok((wanted, Origin::Reused)) };
        exchange(&pin, &next).map_err(|e| Error::file("exchange pins", &pin, e))?;
        let entries = copy_missing(&begun, &wanted)?;
        Ok((wanted, Origin::Moving { entries }))
    }
}

impl Move {
    /// Copies all current entries, while no program uses the new map. Returns their number.
    pub fn copy(&self) -> Result<usize> {
        copy_all(&self.old, &self.new)
    }

    /// Copies the entries that only the old map has, and moves its pin to the new one, when no program writes into the
    /// old map any more. Returns the number of entries that were missing.
    pub fn finish(self) -> Result<usize> {
        let missing = copy_missing(&self.old, &self.new)?;
        std::fs::rename(&self.next, &self.pin).map_err(|e| Error::file("rename pin to", &self.pin, e))?;
        Ok(missing)
    }
}

fn next_of(pin: &Path) -> PathBuf {
    let mut next = pin.as_os_str().to_owned();
    next.push(MOVING);
    PathBuf::from(next)
}

fn open(path: &Path) -> Result<Option<RawMap>> {
    match RawMap::open(path) {
        Ok(map) => Ok(Some(map)),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(e),
    }
}

fn count(map: &RawMap) -> Result<usize> {
    let (key, mut count) = (map.layout().key_size as usize, 0);
    map.scan(|keys, _| count += keys.len() / key)?;
    Ok(count)
}

/// Returns the number of entries that fit without an eviction: the kernel distributes free entries of an LRU map to
/// CPUs in batches of up to 128, which may make it evict before the map is full.
fn capacity(layout: Layout) -> usize {
    let (max, cpus) = (layout.max_entries as usize, possible_cpus());
    match layout.map_type.is_lru() {
        true => max - (max / cpus / 2).clamp(1, 128) * cpus.min(max),
        false => max,
    }
}

/// Copies entries in chunks, so that a large map needs little memory. Returns their number.
fn copy_all(old: &RawMap, new: &RawMap) -> Result<usize> {
    let (mut entries, mut result) = (0, Ok(()));
    old.scan(|keys, values| {
        if result.is_ok() {
            entries += keys.len() / new.layout().key_size as usize;
            result = new.update_batch(keys, values);
        }
    })?;
    result.map(|()| entries)
}

/// Copies entries that the new map does not have. Returns their number.
fn copy_missing(old: &RawMap, new: &RawMap) -> Result<usize> {
    let (key, value) = (new.layout().key_size as usize, new.value_len());
    let (mut entries, mut result) = (0, Ok(()));
    old.scan(|keys, values| {
        for (key, value) in keys.chunks_exact(key).zip(values.chunks_exact(value)) {
            match new.update(key, value, UpdateMode::Create) {
                Ok(()) => entries += 1,
                Err(e) if e.errno() == Some(libc::EEXIST) => {}
                Err(e) => result = Err(e),
            }
        }
    })?;
    result.map(|()| entries)
}

/// Exchanges two pins atomically (`RENAME_EXCHANGE`), so that neither is ever missing.
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    Ok(renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)?)
}
