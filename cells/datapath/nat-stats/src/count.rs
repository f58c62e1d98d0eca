//! The count of a map of translations.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use bpf::RawMap;
use datapath_abi::{NatKey4, NatKey6, tuple_flag};

use crate::row::NatStats;

/// Bytes of the ports, the protocol and the flags, which follow the addresses of a key.
const REST: usize = 6;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// A tuple without its source port, as its bytes: egress address, remote address, remote port, protocol.
type Tuple<const A: usize> = ([u8; A], [u8; A], [u8; 2], u8);

/// The result of a pass through a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The destinations with the most translations, those first.
    pub top: Vec<NatStats>,
    /// The translations of the first of them, 0 without any.
    pub max: u32,
}

/// Counts the translations of a map by destination and returns the `entries` with the most. Pauses for `rest` between
/// chunks of some thousand entries and calls `go_on` after each: false ends the pass, and there is no result.
///
/// The memory of a pass grows with the number of destinations: about 40 bytes each, 64 with IPv6.
pub fn count(
    nat: &RawMap,
    entries: usize,
    rest: Duration,
    go_on: impl FnMut() -> bool,
) -> bpf::Result<Option<Counts>> {
    match nat.layout().key_size as usize {
        size if size == size_of::<NatKey4>() => counted::<4>(nat, "ipv4", entries, rest, go_on),
        size if size == size_of::<NatKey6>() => counted::<16>(nat, "ipv6", entries, rest, go_on),
        _ => Ok(Some(Counts::default())),
    }
}

fn counted<const A: usize>(
    nat: &RawMap,
    family: &'static str,
    entries: usize,
    rest: Duration,
    mut go_on: impl FnMut() -> bool,
) -> bpf::Result<Option<Counts>>
where
    [u8; A]: Into<IpAddr>,
{
    let mut counts: HashMap<Tuple<A>, u32> = HashMap::new();
    let (key_size, mut stopped) = (nat.layout().key_size as usize, false);
    nat.scan(|keys, _| {
        if stopped {
            return;
        }
        for tuple in keys.chunks_exact(key_size).filter_map(tuple::<A>) {
            *counts.entry(tuple).or_default() += 1;
        }
        if !keys.is_empty() {
            std::thread::sleep(rest);
        }
        stopped = !go_on();
    })?;
    if stopped {
        return Ok(None);
    }
    let mut order: Vec<(Tuple<A>, u32)> = counts.into_iter().collect();
    // Equal counts in the order of their tuples: rows of a table that nothing changes stay the same.
    let by_count = |(tuple, count): &(Tuple<A>, u32)| (Reverse(*count), *tuple);
    if entries < order.len() {
        order.select_nth_unstable_by_key(entries, by_count);
        order.truncate(entries);
    }
    order.sort_unstable_by_key(by_count);
    let max = order.first().map_or(0, |(_, count)| *count);
    let row = |((egress, remote, port, protocol), count): (Tuple<A>, u32)| NatStats {
        r#type: family,
        egress: egress.into(),
        remote: remote.into(),
        remote_port: u16::from_be_bytes(port),
        proto: name(protocol),
        count,
    };
    Ok(Some(Counts { top: order.into_iter().map(row).collect(), max }))
}

/// Returns the tuple of a reply's key: it is sent from the remote address to the egress address. `None` for other
/// entries, which are the counterparts of replies, and for protocols without ports.
fn tuple<const A: usize>(key: &[u8]) -> Option<Tuple<A>> {
    let (egress, rest) = key.split_first_chunk::<A>()?;
    let (remote, rest) = rest.split_first_chunk::<A>()?;
    let &[_, _, sport @ .., protocol, tuple_flag::IN] = rest.first_chunk::<REST>()? else { return None };
    match protocol {
        TCP | UDP => Some((*egress, *remote, sport, protocol)),
        // Both ports are the identifier of an echo.
        ICMP | ICMPV6 => Some((*egress, *remote, [0; 2], protocol)),
        _ => None,
    }
}

fn name(protocol: u8) -> &'static str {
    match protocol {
        TCP => "TCP",
        UDP => "UDP",
        ICMP => "ICMP",
        _ => "ICMPv6",
    }
}
