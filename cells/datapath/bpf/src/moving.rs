//! A map on its way to another layout while programs still write into the old one.
//!
//! Connections, affinity and counters are written by programs. Those that are attached go on with the old map until they
//! are replaced, so its rows are brought over three times: when the new map is made, before programs are replaced, and
//! afterwards what only the old one has. Until then the new map has a pin of its own, beside the old one's: a start that
//! finds both goes on where the one before was killed.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::bpffs::{BpfFs, Origin, names_in, unpin};
use crate::error::{Error, Result};
use crate::raw_map::{RawMap, UpdateMode, possible_cpus};
use crate::spec::{Layout, MapSpec, MapType, Verdict};

/// Ends the name of the pin of a map that is about to take another's place.
pub const MOVING: &str = "_next";

/// A map that is about to take another's place.
#[derive(Debug)]
pub struct Move {
    pin: PathBuf,
    next: PathBuf,
    old: RawMap,
    new: RawMap,
}

impl MapType {
    /// Whether rows come from programs: their content cannot be had again, and changes at any time.
    pub(crate) fn is_written_by_programs(self) -> bool {
        self.is_lru() || self.is_per_cpu()
    }
}

impl BpfFs {
    /// The maps that are on their way to another layout.
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

    /// Makes the map that will take the place of `old`, or goes on with the one that an interrupted start has made.
    pub(crate) fn begin_move(&self, spec: &MapSpec, wanted: Layout, old: RawMap) -> Result<(RawMap, Origin)> {
        let pin = self.map(&spec.name);
        let next = next_of(&pin);
        if let Some(begun) = open(&next)? {
            if wanted.compare(&begun.layout()) == Verdict::Reuse {
                let entries = bring_missing(&old, &begun)?;
                return Ok((begun, Origin::Moving { entries }));
            }
            // Of a build that wanted yet another layout. What its programs have written is worth as much.
            bring_missing(&begun, &old)?;
            unpin(&next)?;
        }
        let entries = count(&old)?;
        if entries > room(wanted) {
            return Ok((old, Origin::Kept { entries }));
        }
        let new = RawMap::create(spec)?;
        bring_all(&old, &new)?;
        new.pin(&next)?;
        Ok((new, Origin::Moving { entries }))
    }

    /// Ends what an interrupted start has begun when the layout of before is wanted again: programs may have been
    /// replaced already, so the roles change.
    pub(crate) fn end_move(&self, spec: &MapSpec, wanted: RawMap) -> Result<(RawMap, Origin)> {
        let pin = self.map(&spec.name);
        let next = next_of(&pin);
        let Some(begun) = open(&next)? else { return Ok((wanted, Origin::Reused)) };
        exchange(&pin, &next).map_err(|e| Error::file("exchange pins", &pin, e))?;
        let entries = bring_missing(&begun, &wanted)?;
        Ok((wanted, Origin::Moving { entries }))
    }
}

impl Move {
    /// Brings all rows over as they are now: while no program uses the new map. Returns how many.
    pub fn copy(&self) -> Result<usize> {
        bring_all(&self.old, &self.new)
    }

    /// Brings over what only the old map has, and gives its pin to the new one: when no program writes into the old map
    /// any more. Returns how many rows were missing.
    pub fn finish(self) -> Result<usize> {
        let missing = bring_missing(&self.old, &self.new)?;
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

/// How many rows fit without any being thrown out: the kernel hands free ones of an LRU map to CPUs in portions, up to
/// 128 for each.
fn room(layout: Layout) -> usize {
    let (max, cpus) = (layout.max_entries as usize, possible_cpus());
    match layout.map_type.is_lru() {
        true => max - (max / cpus / 2).clamp(1, 128) * cpus.min(max),
        false => max,
    }
}

/// Copies rows in chunks, so that a large map needs little memory.
fn bring_all(old: &RawMap, new: &RawMap) -> Result<usize> {
    let (mut rows, mut result) = (0, Ok(()));
    old.scan(|keys, values| {
        if result.is_ok() {
            rows += keys.len() / new.layout().key_size as usize;
            result = new.update_batch(keys, values);
        }
    })?;
    result.map(|()| rows)
}

fn bring_missing(old: &RawMap, new: &RawMap) -> Result<usize> {
    let (key, value) = (new.layout().key_size as usize, new.value_len());
    let (mut rows, mut result) = (0, Ok(()));
    old.scan(|keys, values| {
        for (key, value) in keys.chunks_exact(key).zip(values.chunks_exact(value)) {
            match new.update(key, value, UpdateMode::Create) {
                Ok(()) => rows += 1,
                Err(e) if e.errno() == Some(libc::EEXIST) => {}
                Err(e) => result = Err(e),
            }
        }
    })?;
    result.map(|()| rows)
}

/// Two pins change places at one stroke.
#[expect(unsafe_code, reason = "renameat2(2) takes strings")]
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    let path = |path: &Path| std::ffi::CString::new(path.as_os_str().as_bytes());
    let (a, b) = (path(a)?, path(b)?);
    let here = libc::AT_FDCWD;
    // JUSTIFICATION: the standard library cannot exchange names.
    // SAFETY: both strings are NUL-terminated and live across the call.
    let answer = unsafe {
        libc::syscall(libc::SYS_renameat2, here, a.as_ptr(), here, b.as_ptr(), libc::RENAME_EXCHANGE)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
