//! Services: the choice of a backend, and replies with the service's address.
//!
//! A packet that a pod sends to a service is translated at the pod's interface, before any other decision about it:
//! later programs see only the backend. The backend of a connection is stored in its SERVICE entry of the connection
//! tracking maps. The connection's own entry has the service's id, so that replies are translated back to the service
//! where they enter the pod. A pod that is its own backend receives the packet from the node's loopback address for
//! services, as no stack accepts a packet from its own address.

use core::num::NonZeroU32;

pub(crate) mod maglev;
#[cfg(not(feature = "xdp"))]
pub(crate) mod pods;
#[cfg(not(feature = "xdp"))]
pub(crate) mod surrogate;

use crate::conntrack;
use crate::lb::maglev::Maglev;
use crate::maps::btf::Rows;
use crate::maps::*;
use crate::monitor::drop::Drop;
use crate::nat::Translate;
use crate::packet::flow::Flow;
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::Skb;
use aya_ebpf::helpers::bpf_get_prandom_u32;
use datapath_abi::{
    LbAffinity, LbAffinityKey, LbAffinityMatch, LbBackend, LbReverseNat, LbService, LbServiceKey, file,
    lb_backend_state, lb_flag,
};
#[cfg(not(feature = "xdp"))]
use datapath_abi::{SkipLb4Key, SkipLb6Key};

const FILE: u8 = file::LB;

const SYN: u8 = 2;

/// The service maps of an IP family.
pub(crate) trait Services: Translate + Maglev {
    /// A client in the keys of the affinity map.
    type Client: Copy;

    fn services() -> Rows<LbServiceKey<Self::Address>, LbService>;
    fn backends() -> Rows<u32, LbBackend<Self::Address>>;
    fn reverse_nat() -> Rows<u16, LbReverseNat<Self::Address>>;
    fn affinity() -> Rows<LbAffinityKey<Self::Client>, LbAffinity>;
    fn client(address: Self::Address) -> Self::Client;
    /// Returns the source address of a pod's packets to itself.
    fn loopback() -> Self::Address;
    /// True if pods of a network namespace reach this frontend, with its port as on the wire, without redirection.
    #[cfg(not(feature = "xdp"))]
    fn skips(netns_cookie: u64, address: Self::Address, port: u16) -> bool;
}

impl Services for V4 {
    type Client = [u32; 2];

    #[inline(always)]
    fn services() -> Rows<LbServiceKey<u32>, LbService> {
        cilium_lb4_services_v2.rows()
    }

    #[inline(always)]
    fn backends() -> Rows<u32, LbBackend<u32>> {
        cilium_lb4_backends_v3.rows()
    }

    #[inline(always)]
    fn reverse_nat() -> Rows<u16, LbReverseNat<u32>> {
        cilium_lb4_reverse_nat.rows()
    }

    #[inline(always)]
    fn affinity() -> Rows<LbAffinityKey<[u32; 2]>, LbAffinity> {
        cilium_lb4_affinity.rows()
    }

    #[inline(always)]
    fn client(address: u32) -> [u32; 2] {
        [address, 0]
    }

    #[inline(always)]
    fn loopback() -> u32 {
        node!(service_loopback_ipv4)
    }

    #[cfg(not(feature = "xdp"))]
    #[inline(always)]
    fn skips(netns_cookie: u64, address: u32, port: u16) -> bool {
        cilium_skip_lb4.get(&SkipLb4Key { netns_cookie, address, port, pad: 0 }).is_some()
    }
}

impl Services for V6 {
    type Client = [u32; 4];

    #[inline(always)]
    fn services() -> Rows<LbServiceKey<[u32; 4]>, LbService> {
        cilium_lb6_services_v2.rows()
    }

    #[inline(always)]
    fn backends() -> Rows<u32, LbBackend<[u32; 4]>> {
        cilium_lb6_backends_v3.rows()
    }

    #[inline(always)]
    fn reverse_nat() -> Rows<u16, LbReverseNat<[u32; 4]>> {
        cilium_lb6_reverse_nat.rows()
    }

    #[inline(always)]
    fn affinity() -> Rows<LbAffinityKey<[u32; 4]>, LbAffinity> {
        cilium_lb6_affinity.rows()
    }

    #[inline(always)]
    fn client(address: [u32; 4]) -> [u32; 4] {
        address
    }

    #[inline(always)]
    fn loopback() -> [u32; 4] {
        node!(service_loopback_ipv6)
    }

    #[cfg(not(feature = "xdp"))]
    #[inline(always)]
    fn skips(netns_cookie: u64, address: [u32; 4], port: u16) -> bool {
        cilium_skip_lb6.get(&SkipLb6Key { netns_cookie, address, pad: 0, port, pad2: 0 }).is_some()
    }
}

/// Returns a map entry, if it exists.
#[inline(always)]
pub(crate) fn row<K, V>(rows: &Rows<K, V>, key: &K) -> Option<&'static V> {
    // SAFETY: null or a map entry, which outlives the program's run. The agent replaces entries, never modifies them.
    unsafe { rows.pointer(key).as_ref() }
}

/// Returns the backend of a packet to a service: that of its connection, or one that `choose` returns. `None` if the
/// service has none.
#[inline(always)]
pub(crate) fn backend<F: Services>(
    skb: Skb,
    flow: &Flow<F::Address>,
    key: &mut LbServiceKey<F::Address>,
    service: &LbService,
    now: u32,
    choose: impl FnOnce(&mut LbServiceKey<F::Address>, &LbService, &F::Address, u32) -> u32,
) -> Result<Option<&'static LbBackend<F::Address>>, Drop> {
    let rev_nat = service.rev_nat_index;
    let mut id = conntrack::lookup_service::<F>(skb, flow, rev_nat, now).unwrap_or(NO_BACKEND);
    let mut backend = row(&F::backends(), &id);
    // A connection keeps its backend; a new connection on its ports must not go to a terminating backend.
    let opens = flow.tcp_flags() & SYN != 0;
    let stays = backend.is_some_and(|it| it.state == lb_backend_state::ACTIVE || !opens);
    if !stays {
        id = choose(key, service, &flow.source, now);
        backend = row(&F::backends(), &id);
        if backend.is_some() {
            conntrack::create_service::<F>(skb, flow, rev_nat, id, now)?;
        }
    }
    if backend.is_some() && service.flags & lb_flag::SESSION_AFFINITY != 0 {
        remember::<F>(&flow.source, rev_nat, id, now);
    }
    Ok(backend)
}

/// No backend has this id.
const NO_BACKEND: u32 = 0;

/// Returns the id of a backend for a new connection: the client's by affinity, or a random active one. A separate
/// function, so that the verifier only follows its result.
#[inline(never)]
pub(crate) fn choose<F: Services>(
    key: &mut LbServiceKey<F::Address>,
    service: &LbService,
    client: &F::Address,
    now: u32,
) -> u32 {
    let id = recalled::<F>(client, service, now);
    if id != NO_BACKEND { id } else { random::<F>(key, service) }
}

/// Returns the id of the client's backend by affinity.
#[inline(always)]
fn recalled<F: Services>(client: &F::Address, service: &LbService, now: u32) -> u32 {
    if service.flags & lb_flag::SESSION_AFFINITY != 0
        && let Some(id) = recall::<F>(client, service, now)
        && row(&F::backends(), &id).is_some()
    {
        return id;
    }
    NO_BACKEND
}

/// Returns the id of a random active backend.
#[inline(always)]
fn random<F: Services>(key: &mut LbServiceKey<F::Address>, service: &LbService) -> u32 {
    let Some(count) = NonZeroU32::new(u32::from(service.count)) else { return NO_BACKEND };
    // SAFETY: the helper takes no arguments.
    let first = unsafe { bpf_get_prandom_u32() } % count;
    let id = in_slot::<F>(key, first + 1);
    if row(&F::backends(), &id).is_some() {
        return id;
    }
    // The agent removes a backend before it closes the gap in the slots: skip an empty slot.
    in_slot::<F>(key, (first + 1) % count + 1)
}

#[inline(always)]
pub(crate) fn in_slot<F: Services>(key: &mut LbServiceKey<F::Address>, slot: u32) -> u32 {
    key.backend_slot = slot as u16;
    row(&F::services(), key).map_or(NO_BACKEND, |slot| slot.backend_id)
}

/// Bits of a frontend entry's first word that are the affinity timeout in seconds.
const AFFINITY_TIMEOUT_MASK: u32 = 0x00ff_ffff;

#[inline(always)]
fn affinity_key<F: Services>(client: &F::Address, rev_nat_id: u16) -> LbAffinityKey<F::Client> {
    LbAffinityKey { client: F::client(*client), rev_nat_id, netns_cookie: 0, pad1: 0, pad2: 0 }
}

/// Returns the client's backend by affinity, if the entry has not expired and the backend is still active.
#[inline(always)]
fn recall<F: Services>(client: &F::Address, service: &LbService, now: u32) -> Option<u32> {
    let known = row(&F::affinity(), &affinity_key::<F>(client, service.rev_nat_index))?;
    let timeout = ticks(service.backend_id & AFFINITY_TIMEOUT_MASK);
    if known.last_used + u64::from(timeout) <= u64::from(now) {
        return None;
    }
    let backend_id = known.backend_id;
    let serves = LbAffinityMatch { backend_id, rev_nat_id: service.rev_nat_index, pad: 0 };
    cilium_lb_affinity_match.get(&serves)?;
    Some(backend_id)
}

/// Converts seconds to units of the clock.
#[inline(always)]
fn ticks(seconds: u32) -> u32 {
    (u64::from(seconds) * u64::from(node!(ticks_in_256_seconds)) / 256) as u32
}

/// Stores a client's backend with the current time, for affinity.
#[inline(never)]
fn remember<F: Services>(client: &F::Address, rev_nat: u16, backend_id: u32, now: u32) {
    let key = affinity_key::<F>(client, rev_nat);
    let last_used = u64::from(now);
    // SAFETY: null or a map entry, which outlives the program's run. Other CPUs write entries of the same type.
    if let Some(known) = unsafe { F::affinity().pointer(&key).as_mut() }
        && known.backend_id == backend_id
    {
        if known.last_used != last_used {
            known.last_used = last_used;
        }
        return;
    }
    // If the map is full, the next connection of the client chooses a backend again.
    let _ = F::affinity().insert(&key, &LbAffinity { last_used, backend_id, pad: 0 });
}
