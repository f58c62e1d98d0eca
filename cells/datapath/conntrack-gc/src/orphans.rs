//! Translations without a connection: a crash between two rows, or an eviction, has left them. They hold ports.

use std::time::Duration;

use bpf::{RawMap, UpdateMode};
use datapath_abi::{CtEntry, CtTuple4, CtTuple6, tuple_flag};

use crate::collect::{EEXIST, cannot_take};
use crate::translation::{ADDRESS, PORT};

/// The counts of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    /// Rows with a connection.
    pub owned: usize,
    /// Rows without one, which were deleted.
    pub deleted: usize,
}

/// Deletes the rows of a NAT map of which none of these maps of the same family has the connection. Pauses for `rest`
/// between chunks of some thousand rows and calls `go_on` after each: false ends the pass early.
///
/// A connection is there before its translation. One that comes back while its row is deleted gets the row again,
/// unless a packet has made another by then.
pub fn purge_orphans(
    nat: &RawMap,
    connections: &[RawMap],
    rest: Duration,
    mut go_on: impl FnMut() -> bool,
) -> bpf::Result<Orphans> {
    let mut found = Orphans::default();
    let (mut result, mut stopped) = (Ok(()), false);
    let (key_size, value_size) = (nat.layout().key_size as usize, nat.value_len());
    nat.scan(|keys, values| {
        if stopped || result.is_err() {
            return;
        }
        let mut rows = keys.chunks_exact(key_size).zip(values.chunks_exact(value_size));
        result = rows.try_for_each(|(key, value)| row(nat, connections, key, value, &mut found));
        if !keys.is_empty() {
            std::thread::sleep(rest);
        }
        stopped = !go_on();
    })?;
    result.map(|()| found)
}

fn row(
    nat: &RawMap,
    connections: &[RawMap],
    key: &[u8],
    value: &[u8],
    found: &mut Orphans,
) -> bpf::Result<()> {
    let owners = owners(key, value);
    if owners.is_empty() || is_there(connections, &owners)? {
        found.owned += 1;
        return Ok(());
    }
    let mut taken = value.to_vec();
    match nat.take(key, &mut taken) {
        Ok(true) => {}
        Ok(false) => return Ok(()),
        // Linux before 5.14 cannot delete and return an entry atomically.
        Err(error) if error.errno().is_some_and(cannot_take) => {
            if !nat.delete(key)? {
                return Ok(());
            }
        }
        Err(error) => return Err(error),
    }
    // The row may belong to another flow than when it was read.
    if is_there(connections, &self::owners(key, &taken))? {
        found.owned += 1;
        return match nat.update(key, &taken, UpdateMode::Create) {
            Err(error) if error.errno() != Some(EEXIST) => Err(error),
            _ => Ok(()),
        };
    }
    found.deleted += 1;
    Ok(())
}

fn is_there(connections: &[RawMap], owners: &[Vec<u8>]) -> bpf::Result<bool> {
    let mut value = [0; size_of::<CtEntry>()];
    for map in connections {
        for owner in owners {
            if map.lookup(owner, &mut value)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns the keys of connections that own a row: of a row of replies the connection of the original source; of the
/// other rows the one of the packet, or one of direct server return, which has the ports swapped.
fn owners(key: &[u8], value: &[u8]) -> Vec<Vec<u8>> {
    let len = match key.len() {
        size if size == size_of::<CtTuple4>() => 4,
        size if size == size_of::<CtTuple6>() => 16,
        _ => return Vec::new(),
    };
    let (addresses, rest) = key.split_at(2 * len);
    let (daddr, saddr) = addresses.split_at(len);
    let (dport, sport) = (&rest[..PORT], &rest[PORT..2 * PORT]);
    let &[.., protocol, flags] = rest else { return Vec::new() };
    let kind = [protocol, tuple_flag::OUT];
    // Keys of connections have the addresses reversed, those of translations do not.
    match flags {
        tuple_flag::OUT => {
            vec![[saddr, daddr, dport, sport, &kind].concat(), [daddr, saddr, sport, dport, &kind].concat()]
        }
        tuple_flag::IN => {
            let (address, port) = value[ADDRESS..ADDRESS + len + PORT].split_at(len);
            vec![[address, saddr, sport, port, &kind].concat()]
        }
        // Rows of other kinds are not made by these programs.
        _ => Vec::new(),
    }
}
