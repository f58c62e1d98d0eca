//! Services: the choice of a backend, and replies with the service's address.
//!
//! A packet that a pod sends to a service is translated at the pod's interface, before any other decision about it:
//! later programs see only the backend. The backend of a connection is stored in its SERVICE entry of the connection
//! tracking maps. The connection's own entry has the service's id, so that replies are translated back to the service
//! where they enter the pod. A pod that is its own backend receives the packet from the node's loopback address for
//! services, as no stack accepts a packet from its own address.

use core::num::NonZeroU32;

pub(crate) mod maglev;
pub(crate) mod surrogate;

use crate::conntrack;
use crate::lb::maglev::Maglev;
use crate::maps::btf::Rows;
use crate::maps::*;
use crate::monitor::drop::Drop;
use crate::nat::{self, Socket, Translate};
use crate::packet::flow::{Flow, SCTP, TCP, UDP};
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::Skb;
use aya_ebpf::helpers::bpf_get_prandom_u32;
use datapath_abi::mark::service_state;
use datapath_abi::{
    LbAffinity, LbAffinityKey, LbAffinityMatch, LbBackend, LbReverseNat, LbService, LbServiceKey, file,
    lb_backend_state, lb_flag, lb_flag2, lb_scope,
};

const FILE: u8 = file::LB;

const SYN: u8 = 2;

/// The service that a packet was sent to. (Not an `Option`: the compiler leaves the fields of `None` uninitialized, and
/// the verifier rejects copies of them.)
#[derive(Clone, Copy)]
pub(crate) struct Service {
    /// Its id, big-endian, for the connection's entry; zero for none.
    pub(crate) rev_nat: u16,
    /// The pod is its own backend.
    pub(crate) loopback: bool,
    /// It was found by its port alone: its address is that of any node.
    pub(crate) surrogate: bool,
}

impl Service {
    /// No service: the packet goes to its own destination.
    pub(crate) const NONE: Self = Self { rev_nat: 0, loopback: false, surrogate: false };

    /// Reads the service that the previous program has stored in the context.
    #[inline(always)]
    pub(crate) fn of(skb: Skb) -> Self {
        let state = skb.cb(service_state::SLOT);
        Self {
            rev_nat: (state >> service_state::REV_NAT_SHIFT) as u16,
            loopback: state & service_state::LOOPBACK != 0,
            surrogate: state & service_state::SURROGATE != 0,
        }
    }

    /// Stores the service in the context for the next program.
    #[inline(always)]
    pub(crate) fn hand_over(self, skb: Skb) {
        let loopback = if self.loopback { service_state::LOOPBACK } else { 0 };
        let surrogate = if self.surrogate { service_state::SURROGATE } else { 0 };
        let state = u32::from(self.rev_nat) << service_state::REV_NAT_SHIFT | loopback | surrogate;
        skb.set_cb(service_state::SLOT, state);
    }

    /// True if the packet was translated.
    #[inline(always)]
    pub(crate) fn is_some(self) -> bool {
        self.rev_nat != 0
    }
}

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
}

/// Returns a map entry, if it exists.
#[inline(always)]
pub(crate) fn row<K, V>(rows: &Rows<K, V>, key: &K) -> Option<&'static V> {
    // SAFETY: null or a map entry, which outlives the program's run. The agent replaces entries, never modifies them.
    unsafe { rows.pointer(key).as_ref() }
}

/// Translates a packet and its flow to a backend if its destination is a service. The caller must reload its packet
/// pointers if it was.
#[inline(always)]
pub(crate) fn translate<F: Services>(
    skb: Skb,
    flow: &mut Flow<F::Address>,
    now: u32,
) -> Result<Service, Drop> {
    // ICMP has no services: an echo, or an error about a reply, goes to its destination address.
    if !enabled!(per_packet_lb) || !matches!(flow.protocol(), TCP | UDP | SCTP) {
        return Ok(Service::NONE);
    }
    let mut key = LbServiceKey {
        address: flow.destination,
        dport: flow.dport,
        backend_slot: 0,
        proto: flow.protocol(),
        scope: lb_scope::EXTERNAL,
        pad: [0; 2],
    };
    let found = lookup::<F>(&mut key);
    let surrogate = enabled!(nodeport) && found.is_none();
    let found = if surrogate { surrogate::lookup::<F>(flow, &mut key) } else { found };
    let Some(service) = found else { return Ok(Service::NONE) };
    // Translated by the proxy or by another agent on this node.
    let delegated = service.flags2 & lb_flag2::LOOPBACK != 0 && service.flags & lb_flag::HOST_PORT == 0;
    if delegated || service.flags2 & lb_flag2::L7_LOAD_BALANCER != 0 {
        return Ok(Service::NONE);
    }
    let rev_nat = service.rev_nat_index;
    let sport = flow.sport;
    let backend = backend::<F>(skb, flow, &mut key, service, now, |key, service, client, now| {
        // Only an annotation gives a service of pods a table.
        if enabled!(algorithm_annotation) && maglev::is_algorithm_of(service, false) {
            maglev::choose::<F>(key, service, client, sport, now)
        } else {
            choose::<F>(key, service, client, now)
        }
    })?;
    let Some(backend) = backend else {
        if enabled!(empty_services_drop) {
            return Err(drop_here!(SERVICE_BACKEND_NOT_FOUND));
        }
        return Ok(Service::NONE);
    };
    let to = Socket { address: backend.address, port: backend.port };
    let loopback = F::same(to.address, flow.source);
    let source = if loopback { F::loopback() } else { flow.source };
    if surrogate {
        surrogate::hand_over::<F>(skb, flow.destination);
    }
    nat::to_destination::<F>(skb, flow, to, source, loopback)?;
    Ok(Service { rev_nat, loopback, surrogate })
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

/// Returns the entry of a service for clients inside of the cluster.
#[inline(always)]
fn lookup<F: Services>(key: &mut LbServiceKey<F::Address>) -> Option<&'static LbService> {
    let service = row(&F::services(), key)?;
    if service.flags2 & lb_flag2::TWO_SCOPES == 0 {
        return Some(service);
    }
    key.scope = lb_scope::INTERNAL;
    row(&F::services(), key)
}

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

/// Translates a reply's source back to the service, at the client pod; the destination of a pod's reply to itself
/// becomes the pod's address again. In an ICMP error the quoted packet is the one that the pod has sent. The caller
/// must reload its packet pointers. Without an entry of the service the packet is unchanged.
#[inline(always)]
pub(crate) fn reply<F: Services>(
    skb: Skb,
    flow: &mut Flow<F::Address>,
    rev_nat: u16,
    loopback: bool,
) -> Result<(), Drop> {
    let Some(service) = row(&F::reverse_nat(), &rev_nat) else { return Ok(()) };
    let mut to = Socket { address: service.address, port: service.port };
    if enabled!(nodeport) && F::same(to.address, F::from_words([0; 4])) {
        let Some(original) = conntrack::nodeport::original_destination::<F>(flow) else { return Ok(()) };
        to.address = original;
    }
    let client = if loopback { flow.source } else { flow.destination };
    if flow.is_related() && flow.has_upper_header() {
        nat::quoted::<F>(skb, flow.offset(), to, client)?;
    }
    nat::to_source::<F>(skb, flow, to, client, loopback)
}
