//! One pass through a map: deletes expired entries, or entries of addresses without an owner.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use bpf::{Clock, Pod, RawMap, UpdateMode};
use datapath_abi::{CtEntry, CtTuple4, CtTuple6};

use crate::translation;

/// The maps of connections; a node has those of its families.
pub const MAPS: [&str; 4] =
    ["cilium_ct4_global", "cilium_ct_any4_global", "cilium_ct6_global", "cilium_ct_any6_global"];

/// The counts of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Entries that are in use.
    pub alive: usize,
    /// Expired entries that were deleted.
    pub deleted: usize,
    /// Entries that were expired when read, but refreshed by a packet before the deletion.
    pub saved: usize,
}

/// Deletes the expired entries of a connection tracking map. Pauses for `rest` between chunks of some thousand
/// entries and calls `go_on` after each: false ends the pass early.
pub fn collect(
    map: &RawMap,
    clock: &Clock,
    rest: Duration,
    go_on: impl FnMut() -> bool,
) -> bpf::Result<Collected> {
    collect_with(map, None, clock, rest, go_on)
}

/// As [`collect`], and removes the translations of deleted connections from a NAT map.
pub fn collect_with(
    map: &RawMap,
    nat: Option<&RawMap>,
    clock: &Clock,
    rest: Duration,
    mut go_on: impl FnMut() -> bool,
) -> bpf::Result<Collected> {
    let mut found = Collected::default();
    let (mut result, mut stopped) = (Ok(()), false);
    let key_size = map.layout().key_size as usize;
    map.scan(|keys, values| {
        if stopped || result.is_err() {
            return;
        }
        result = chunk(map, nat, clock, keys.chunks_exact(key_size), values, &mut found);
        if !keys.is_empty() {
            std::thread::sleep(rest);
        }
        stopped = !go_on();
    })?;
    result.map(|()| found)
}

/// Deletes the entries of connections from or to one of these addresses, so that the next owner of an address does not
/// inherit them. Returns the number of deleted entries.
pub fn forget(map: &RawMap, addresses: &BTreeSet<IpAddr>) -> bpf::Result<usize> {
    let key_size = map.layout().key_size as usize;
    let (mut result, mut deleted) = (Ok(()), 0);
    map.scan(|keys, _| {
        let of_them = keys.chunks_exact(key_size).filter(|key| ends(key).any(|ip| addresses.contains(&ip)));
        let keys: Vec<u8> = of_them.flatten().copied().collect();
        if result.is_ok() && !keys.is_empty() {
            deleted += keys.len() / key_size;
            result = map.delete_batch(&keys);
        }
    })?;
    result.map(|()| deleted)
}

/// Returns the addresses of connections for which `wanted` is true.
pub fn ends_among(map: &RawMap, wanted: impl Fn(IpAddr) -> bool) -> bpf::Result<BTreeSet<IpAddr>> {
    let key_size = map.layout().key_size as usize;
    let mut found = BTreeSet::new();
    map.scan(|keys, _| found.extend(keys.chunks_exact(key_size).flat_map(ends).filter(|ip| wanted(*ip))))?;
    Ok(found)
}

/// Returns both addresses of a tuple, which begins with them.
fn ends(key: &[u8]) -> impl Iterator<Item = IpAddr> {
    const V4: usize = size_of::<CtTuple4>();
    const V6: usize = size_of::<CtTuple6>();
    let v4 = |at: usize| <[u8; 4]>::try_from(&key[at..at + 4]).ok().map(IpAddr::from);
    let v6 = |at: usize| <[u8; 16]>::try_from(&key[at..at + 16]).ok().map(IpAddr::from);
    let ends = match key.len() {
        V4 => [v4(0), v4(4)],
        V6 => [v6(0), v6(16)],
        _ => [None, None],
    };
    ends.into_iter().flatten()
}

fn chunk<'a>(
    map: &RawMap,
    nat: Option<&RawMap>,
    clock: &Clock,
    keys: impl Iterator<Item = &'a [u8]>,
    values: &[u8],
    found: &mut Collected,
) -> bpf::Result<()> {
    // Once per chunk, as reading the jiffies clock takes a test run of a program.
    let now = clock.now()?;
    for (key, value) in keys.zip(values.chunks_exact(size_of::<CtEntry>())) {
        if !has_ended(value, now) {
            found.alive += 1;
            continue;
        }
        match delete(map, clock, key)? {
            Deletion::Done => {
                found.deleted += 1;
                // A packet that has begun the connection again since keeps its translation.
                if let Some(nat) = nat
                    && !map.lookup(key, &mut [0; size_of::<CtEntry>()])?
                {
                    translation::remove(nat, key)?;
                }
            }
            Deletion::Lives => {
                found.alive += 1;
                found.saved += 1;
            }
            Deletion::Gone => {}
        }
    }
    Ok(())
}

fn has_ended(value: &[u8], now: u32) -> bool {
    CtEntry::from_bytes(value).is_some_and(|row| row.lifetime < now)
}

enum Deletion {
    Done,
    /// A packet has refreshed the entry.
    Lives,
    /// The entry is missing: evicted, or deleted by another process.
    Gone,
}

/// Deletes an entry that was expired when read, unless a packet has refreshed it since.
fn delete(map: &RawMap, clock: &Clock, key: &[u8]) -> bpf::Result<Deletion> {
    let mut value = [0; size_of::<CtEntry>()];
    match map.take(key, &mut value) {
        Ok(true) => {}
        Ok(false) => return Ok(Deletion::Gone),
        // Linux before 5.14 cannot delete and return an entry atomically: read it again right before the deletion.
        Err(error) if error.errno().is_some_and(cannot_take) => {
            return if !map.lookup(key, &mut value)? {
                Ok(Deletion::Gone)
            } else if !has_ended(&value, clock.now()?) {
                Ok(Deletion::Lives)
            } else {
                map.delete(key).map(|done| if done { Deletion::Done } else { Deletion::Gone })
            };
        }
        Err(error) => return Err(error),
    }
    if has_ended(&value, clock.now()?) {
        return Ok(Deletion::Done);
    }
    match map.update(key, &value, UpdateMode::Create) {
        Ok(()) => Ok(Deletion::Lives),
        // The next packet has recreated the entry with a newer state: keep that.
        Err(error) if error.errno() == Some(EEXIST) => Ok(Deletion::Lives),
        Err(error) => Err(error),
    }
}

pub(crate) const EEXIST: i32 = 17;

/// Whether the error means that the kernel cannot delete and return an entry of this map type.
pub(crate) fn cannot_take(errno: i32) -> bool {
    const EINVAL: i32 = 22;
    const EOPNOTSUPP: i32 = 95;
    const ENOTSUPP: i32 = 524;
    matches!(errno, EINVAL | EOPNOTSUPP | ENOTSUPP)
}
