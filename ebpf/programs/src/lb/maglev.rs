//! Maglev: a flow has the same backend on every node, by the table that the agent has computed for the service.
//!
//! The hash is Cilium's, of the fields that it takes: a cluster may have nodes of both kinds. A service without a table,
//! or with one that names a removed backend, gets a random backend, where Cilium drops the packet: tables are written
//! after the programs are loaded, and do not fit into a full map.

use super::*;
use crate::maps::btf::HashOfMaps;
use crate::packet::family::Family;
use crate::packet::skb::opaque;
use datapath_abi::lb_algorithm;

/// The tables of an IP family, and its hash.
pub(crate) trait Maglev: Family {
    fn tables() -> &'static Tables;
    /// Returns the hash of a flow: its ports have the destination in the upper half.
    fn hash(client: Self::Address, ports: u32, protocol: u8) -> u32;
}

type Tables = HashOfMaps<u16, MaglevTable, 65536, { btf::NO_PREALLOC | btf::RDONLY_PROG }>;

impl Maglev for V4 {
    #[inline(always)]
    fn tables() -> &'static Tables {
        &cilium_lb4_maglev
    }

    #[inline(always)]
    fn hash(client: u32, ports: u32, protocol: u8) -> u32 {
        /// `JHASH_INITVAL` (linux/jhash.h) plus four times the number of words.
        const INITIAL: u32 = 0xdead_beef + (3 << 2);
        let seed = node!(maglev_seed_ipv4).wrapping_add(INITIAL);
        let words = [client, ports, u32::from(protocol)].map(|word| word.wrapping_add(seed));
        jhash_final(words)
    }
}

impl Maglev for V6 {
    #[inline(always)]
    fn tables() -> &'static Tables {
        &cilium_lb6_maglev
    }

    #[inline(always)]
    fn hash(client: [u32; 4], ports: u32, protocol: u8) -> u32 {
        let [a, b, c] = jhash_mix([client[0], client[1], client[2]]);
        let words = [a.wrapping_add(client[3]), b.wrapping_add(ports), c.wrapping_add(u32::from(protocol))];
        let [a, b, c] = jhash_mix(words);
        jhash_final([a.wrapping_add(node!(maglev_seed_ipv6)), b, c])
    }
}

/// `__jhash_mix` (linux/jhash.h).
#[inline(always)]
fn jhash_mix([mut a, mut b, mut c]: [u32; 3]) -> [u32; 3] {
    a = a.wrapping_sub(c) ^ c.rotate_left(4);
    c = c.wrapping_add(b);
    b = b.wrapping_sub(a) ^ a.rotate_left(6);
    a = a.wrapping_add(c);
    c = c.wrapping_sub(b) ^ b.rotate_left(8);
    b = b.wrapping_add(a);
    a = a.wrapping_sub(c) ^ c.rotate_left(16);
    c = c.wrapping_add(b);
    b = b.wrapping_sub(a) ^ a.rotate_left(19);
    a = a.wrapping_add(c);
    c = c.wrapping_sub(b) ^ b.rotate_left(4);
    b = b.wrapping_add(a);
    [a, b, c]
}

/// `__jhash_final` (linux/jhash.h).
#[inline(always)]
fn jhash_final([mut a, mut b, mut c]: [u32; 3]) -> u32 {
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

/// True if backends of a service are chosen by its table: by its annotation, or because that is the default.
#[inline(always)]
pub(crate) fn is_algorithm_of(service: &LbService, default: bool) -> bool {
    if !enabled!(algorithm_annotation) {
        return default;
    }
    match service.backend_id >> lb_algorithm::SHIFT {
        lb_algorithm::RANDOM => false,
        lb_algorithm::MAGLEV => true,
        _ => default,
    }
}

/// Returns the id of a backend for a new connection: the client's by affinity, or that of the table. A separate function,
/// so that the verifier only follows its result.
#[inline(never)]
pub(crate) fn choose<F: Services>(
    key: &mut LbServiceKey<F::Address>,
    service: &LbService,
    client: &F::Address,
    sport: u16,
    now: u32,
) -> u32 {
    let id = recalled::<F>(client, service, now);
    if id != NO_BACKEND {
        return id;
    }
    // A client with affinity has the same backend for all of its ports.
    let sport = if service.flags & lb_flag::SESSION_AFFINITY != 0 { 0 } else { sport };
    let ports = u32::from(key.dport) << 16 | u32::from(sport);
    let id = at_position::<F>(service.rev_nat_index, F::hash(*client, ports, key.proto));
    if row(&F::backends(), &id).is_some() { id } else { random::<F>(key, service) }
}

/// Returns the id of the backend at the position of a hash.
#[inline(always)]
fn at_position<F: Maglev>(rev_nat: u16, hash: u32) -> u32 {
    let size = node!(maglev_table_size);
    let Some(positions) = NonZeroU32::new(size) else { return NO_BACKEND };
    let Some(table) = F::tables().get(&rev_nat) else { return NO_BACKEND };
    let ids = table.pointer(&0).cast::<u32>();
    let position = opaque(u64::from(hash % positions));
    // Never more than the size: for the verifier, which does not follow a division.
    if ids.is_null() || position >= u64::from(size) {
        return NO_BACKEND;
    }
    // SAFETY: tables have this size, and the position is checked; the map outlives the program's run.
    unsafe { ids.add(position as usize).read() }
}
