//! Connection tracking: assigns packets to connections and refreshes the lifetime of their entries.
//!
//! A connection through a pod's programs is one entry under the tuple of its first packet, addresses reversed: `OUT` if
//! the pod opened it, `IN` if its peer did, and a second entry for ICMP errors about it. A packet is looked up as a
//! reply first (with the direction bit of the other side), then as a packet in the direction of the first one.
//!
//! Steps for a packet: [`flow::of`](crate::packet::flow::of), [`now`] once, [`lookup`], and [`create`] for a new
//! connection that is allowed. Services: [`lookup_service`] and [`create_service`]; at devices [`nodeport`], [`dsr`].

pub(crate) mod dsr;
pub(crate) mod nodeport;

use crate::maps::cilium_signals;
use crate::monitor::drop::Drop;
use crate::packet::family::Family;
use crate::packet::flow::Flow;
use crate::packet::skb::{Skb, opaque};
#[cfg(feature = "xdp")]
use aya_ebpf::helpers::bpf_ktime_get_coarse_ns as clock;
#[cfg(not(feature = "xdp"))]
use aya_ebpf::helpers::bpf_ktime_get_ns as clock;
use aya_ebpf::helpers::{bpf_jiffies64, bpf_perf_event_output};
use datapath_abi::signal::{CT_FILL_UP, FillUp};
use datapath_abi::{CtEntry, CtTuple, ct_flag, file, tuple_flag};

const FILE: u8 = file::CONNTRACK;

/// TCP flags, as bits of their byte.
const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// True for a packet that opens a connection: SYN alone. SYN|ACK is a reply, possibly a late one.
#[inline(always)]
fn opens(tcp_flags: u8) -> bool {
    tcp_flags & (SYN | ACK) == SYN
}

const CLOSING: u16 = ct_flag::RX_CLOSING | ct_flag::TX_CLOSING;

/// The hook and direction in which a packet is looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Out of a pod.
    Egress,
    /// Into a pod.
    Ingress,
    /// To a service, before its translation.
    Service,
}

/// The relation of a packet to its connection. The values are those of trace reasons.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// It belongs to no known connection.
    New = 0,
    /// It has the direction of the first packet.
    Established = 1,
    /// It has the opposite direction.
    Reply = 2,
    /// An ICMP error about the connection.
    Related = 3,
}

/// The result of a connection lookup: one packed integer, as [`Flow`].
#[derive(Clone, Copy)]
pub(crate) struct Found(u64);

impl Found {
    const MONITOR_SHIFT: u32 = 2;
    const FLAGS_SHIFT: u32 = 32;
    const REV_NAT_SHIFT: u32 = 48;

    /// No entry was found.
    const NEW: Self = Self::new(Status::New, true, 0, 0);

    #[inline(always)]
    const fn new(status: Status, monitor: bool, flags: u16, rev_nat: u16) -> Self {
        Self(
            status as u64
                | (monitor as u64) << Self::MONITOR_SHIFT
                | (flags as u64) << Self::FLAGS_SHIFT
                | (rev_nat as u64) << Self::REV_NAT_SHIFT,
        )
    }

    #[inline(always)]
    pub(crate) fn status(self) -> Status {
        match opaque(self.0) & 3 {
            0 => Status::New,
            1 => Status::Established,
            2 => Status::Reply,
            _ => Status::Related,
        }
    }

    /// True if this packet is reported to monitors even with aggregation of established connections.
    #[inline(always)]
    pub(crate) fn monitor(self) -> bool {
        opaque(self.0) >> Self::MONITOR_SHIFT & 1 != 0
    }

    /// Returns the [`ct_flag`] bits of the entry.
    #[inline(always)]
    pub(crate) fn flags(self) -> u16 {
        (opaque(self.0) >> Self::FLAGS_SHIFT) as u16
    }

    /// True if a proxy takes the connection.
    #[inline(always)]
    pub(crate) fn is_proxied(self) -> bool {
        self.flags() & ct_flag::PROXY_REDIRECT != 0
    }

    /// Returns the id of the translated service, big-endian; 0 for none.
    #[inline(always)]
    pub(crate) fn rev_nat(self) -> u16 {
        (opaque(self.0) >> Self::REV_NAT_SHIFT) as u16
    }
}

/// The state that a new entry stores besides the tuple.
#[derive(Clone, Copy, Default)]
pub(crate) struct State {
    /// Security identity of the side that opened the connection.
    pub(crate) src_label: u32,
    /// [`ct_flag`] bits, such as `LB_LOOPBACK`.
    pub(crate) flags: u16,
    /// The id of the translated service, big-endian.
    pub(crate) rev_nat: u16,
    /// The destination before a translation by the port alone, in the format of map keys; else zero.
    pub(crate) nat_address: [u32; 4],
}

/// Returns the time on the clock of lifetimes. Call it once per program run: it costs 25 ns.
#[inline(always)]
pub(crate) fn now() -> u32 {
    const JIFFIES_SHIFT: u32 = 8;
    const NANOSECONDS: u64 = 1_000_000_000;
    if enabled!(jiffies_clock) {
        // SAFETY: the helper takes no arguments and reads only the clock.
        (unsafe { bpf_jiffies64() } >> JIFFIES_SHIFT) as u32
    } else {
        // SAFETY: the helper takes no arguments and reads only the clock.
        (unsafe { clock() } / NANOSECONDS) as u32
    }
}

/// Looks up a packet's connection, as a reply first, unless its destination was a service: then it cannot be a reply.
/// Refreshes the entry that it finds.
#[inline(always)]
pub(crate) fn lookup<F: Family>(
    skb: Skb,
    flow: &Flow<F::Address>,
    direction: Direction,
    translated: bool,
    now: u32,
) -> Found {
    let reply =
        if translated { None } else { look::<F>(skb, &reversed::<F>(flow, direction), flow, direction, now) };
    let found = match reply {
        // The status is `Reply`, or the next value, `Related`, for an ICMP error about the connection.
        Some(found) => Found(found.0 + 1 + u64::from(flow.is_related())),
        None => {
            let key = forward::<F>(flow, direction);
            look::<F>(skb, &key, flow, direction, now).unwrap_or(Found::NEW)
        }
    };
    Found(skb.forget(found.0))
}

/// Creates the entry of a packet's connection, and the one for ICMP errors about it.
#[inline(always)]
pub(crate) fn create<F: Family>(
    skb: Skb,
    flow: &Flow<F::Address>,
    direction: Direction,
    state: &State,
    now: u32,
) -> Result<(), Drop> {
    let key = forward::<F>(flow, direction);
    let mut entry = CtEntry {
        rev_nat_index: state.rev_nat,
        flags: state.flags,
        src_sec_id: state.src_label,
        ..CtEntry::default()
    };
    if enabled!(nodeport) {
        entry.set_nat(state.nat_address, 0);
    }
    begin(&mut entry, skb, flow, direction, now);
    if let Err(errno) = insert::<F>(&key, &entry, flow.is_tcp()) {
        return Err(full::<F>(skb, errno));
    }
    let flags = key.flags | tuple_flag::RELATED;
    let errors = CtTuple { dport: 0, sport: 0, nexthdr: F::ICMP, flags, ..key };
    entry.flags |= ct_flag::SEEN_NON_SYN;
    F::ct_any().insert(&errors, &entry).map_err(|errno| full::<F>(skb, errno))
}

/// Keeps the entry of a flow of the host, or creates it, without one for ICMP errors. No other program tracks the host's
/// flows.
#[inline(always)]
pub(crate) fn keep<F: Family>(skb: Skb, flow: &Flow<F::Address>, now: u32) -> Result<(), Drop> {
    let key = forward::<F>(flow, Direction::Egress);
    if look::<F>(skb, &key, flow, Direction::Egress, now).is_some() {
        return Ok(());
    }
    let mut entry = CtEntry::default();
    begin(&mut entry, skb, flow, Direction::Egress, now);
    insert::<F>(&key, &entry, flow.is_tcp()).map_err(|errno| full::<F>(skb, errno))
}

/// Refreshes the entry of a flow of the host by a reply to it.
#[inline(always)]
pub(crate) fn refresh_reply<F: Family>(skb: Skb, flow: &Flow<F::Address>, now: u32) {
    look::<F>(skb, &reversed::<F>(flow, Direction::Ingress), flow, Direction::Ingress, now);
}

/// True for a packet that a pod sends as a reply, or as an ICMP error, to a connection that its peer has opened.
#[inline(always)]
pub(crate) fn is_reply<F: Family>(flow: &Flow<F::Address>) -> bool {
    !row::<F>(&reversed::<F>(flow, Direction::Egress), flow.is_tcp()).is_null()
}

/// Returns the backend of a client's connection to a service, if there is an entry and the service is still the same.
/// A new connection on the ports of a closed one counts as unknown. As in Cilium, only SYN|ACK may use the entry within
/// the grace time, as it may belong to the closed connection.
#[inline(always)]
pub(crate) fn lookup_service<F: Family>(
    skb: Skb,
    flow: &Flow<F::Address>,
    rev_nat: u16,
    now: u32,
) -> Option<u32> {
    let key = reversed::<F>(flow, Direction::Service);
    // SAFETY: null or a map entry, which outlives the program's run.
    let entry = unsafe { row::<F>(&key, flow.is_tcp()).as_mut()? };
    let closing = flow.is_tcp() && entry.flags & CLOSING != 0;
    let rested = entry.last_tx_report.wrapping_add(node!(ct_service_tcp_grace)) <= now;
    let reopened = closing && (opens(flow.tcp_flags()) || flow.tcp_flags() & SYN != 0 && rested);
    if entry.rev_nat_index != rev_nat || reopened {
        return None;
    }
    hit(entry, skb, flow, Direction::Service, now);
    Some(entry.backend_id as u32)
}

/// Writes the backend of a client's connection to a service, replacing a previous one.
#[inline(always)]
pub(crate) fn create_service<F: Family>(
    skb: Skb,
    flow: &Flow<F::Address>,
    rev_nat: u16,
    backend: u32,
    now: u32,
) -> Result<(), Drop> {
    let key = reversed::<F>(flow, Direction::Service);
    let mut entry = CtEntry { backend_id: u64::from(backend), rev_nat_index: rev_nat, ..CtEntry::default() };
    begin(&mut entry, skb, flow, Direction::Service, now);
    insert::<F>(&key, &entry, flow.is_tcp()).map_err(|errno| full::<F>(skb, errno))
}

/// Returns the id, big-endian, of the service through which a pod has sent this packet to itself; 0 if it has not. Call
/// it only for packets from the loopback address of services.
#[inline(always)]
pub(crate) fn sent_to_itself<F: Family>(skb: Skb, flow: &Flow<F::Address>) -> u16 {
    let key = CtTuple { flags: tuple_flag::OUT | related(flow), ..forward::<F>(flow, Direction::Ingress) };
    // SAFETY: null or a map entry, which outlives the program's run.
    let rev_nat = match unsafe { row::<F>(&key, flow.is_tcp()).as_ref() } {
        Some(sent) if sent.flags & ct_flag::LB_LOOPBACK != 0 => sent.rev_nat_index,
        _ => 0,
    };
    skb.forget(u64::from(rev_nat)) as u16
}

/// Returns the tuple of a packet's connection, if the packet is a reply; for services the only tuple.
#[inline(always)]
fn reversed<F: Family>(flow: &Flow<F::Address>, direction: Direction) -> CtTuple<F::Address> {
    let flags = match direction {
        Direction::Egress => tuple_flag::IN,
        Direction::Ingress => tuple_flag::OUT,
        Direction::Service => tuple_flag::SERVICE,
    };
    CtTuple {
        daddr: flow.destination,
        saddr: flow.source,
        dport: flow.sport,
        sport: flow.dport,
        nexthdr: flow.protocol(),
        flags: flags | related(flow),
    }
}

/// Returns the tuple of a packet in the direction of the first one.
#[inline(always)]
fn forward<F: Family>(flow: &Flow<F::Address>, direction: Direction) -> CtTuple<F::Address> {
    let flags = match direction {
        Direction::Ingress => tuple_flag::IN,
        _ => tuple_flag::OUT,
    };
    CtTuple {
        daddr: flow.source,
        saddr: flow.destination,
        dport: flow.dport,
        sport: flow.sport,
        nexthdr: flow.protocol(),
        flags: flags | related(flow),
    }
}

#[inline(always)]
fn related<A>(flow: &Flow<A>) -> u8 {
    if flow.is_related() { tuple_flag::RELATED } else { 0 }
}

/// Returns the entry of a tuple, or null. One call per map: the kernel inlines the lookup only if the map is constant.
#[inline(always)]
fn row<F: Family>(key: &CtTuple<F::Address>, tcp: bool) -> *mut CtEntry {
    if tcp {
        let row = F::ct_tcp().pointer(key);
        // SAFETY: sets an unused register. The statement keeps the compiler from merging both calls into one.
        unsafe { core::arch::asm!("{unused} = 0", unused = out(reg) _, options(nomem, nostack)) };
        row
    } else {
        F::ct_any().pointer(key)
    }
}

#[inline(always)]
fn insert<F: Family>(key: &CtTuple<F::Address>, entry: &CtEntry, tcp: bool) -> Result<(), i8> {
    if tcp { F::ct_tcp().insert(key, entry) } else { F::ct_any().insert(key, entry) }
}

/// Looks up a tuple and refreshes its entry. A reopened connection counts as not found.
#[inline(always)]
fn look<F: Family>(
    skb: Skb,
    key: &CtTuple<F::Address>,
    flow: &Flow<F::Address>,
    direction: Direction,
    now: u32,
) -> Option<Found> {
    // SAFETY: null or an entry of the map, which outlives the program's run. Other CPUs may write it concurrently:
    // each field is an aligned integer, so one of both values stays, and either is correct.
    let entry = unsafe { row::<F>(key, flow.is_tcp()).as_mut()? };
    let monitor = match hit(entry, skb, flow, direction, now) {
        Hit::Open { monitor } => monitor,
        Hit::Reopened => return None,
    };
    Some(Found::new(Status::Established, monitor, entry.flags, entry.rev_nat_index))
}

/// The effect of a packet on the entry of its connection.
enum Hit {
    Open {
        monitor: bool,
    },
    /// The packet reopens a closed connection.
    Reopened,
}

#[inline(always)]
fn hit<A>(entry: &mut CtEntry, skb: Skb, flow: &Flow<A>, direction: Direction, now: u32) -> Hit {
    let mut monitor = false;
    // An entry that both sides have closed is not refreshed, so that it expires.
    if entry.flags & CLOSING != CLOSING {
        monitor = refresh(entry, flow.is_tcp(), flow.tcp_flags(), direction, now);
    }
    if enabled!(ct_accounting) {
        add(&raw mut entry.packets, 1);
        add(&raw mut entry.bytes, u64::from(skb.len()));
    }
    if flow.is_tcp() {
        if flow.tcp_flags() & (RST | FIN) != 0 {
            close(entry, flow.tcp_flags(), direction, now);
            monitor = true;
        } else if opens(flow.tcp_flags()) && entry.flags & CLOSING != 0 {
            entry.flags &= !(CLOSING | ct_flag::SEEN_NON_SYN);
            (entry.tx_flags_seen, entry.rx_flags_seen) = (0, 0);
            refresh(entry, true, flow.tcp_flags(), direction, now);
            return Hit::Reopened;
        }
    }
    Hit::Open { monitor }
}

/// Marks the entry as closing by a packet with FIN or RST.
#[inline(always)]
fn close(entry: &mut CtEntry, tcp_flags: u8, direction: Direction, now: u32) {
    let both_opened = entry.rx_flags_seen & entry.tx_flags_seen & SYN != 0;
    let closing = match direction {
        // A service entry sees only one direction, so a single FIN closes it.
        Direction::Service => CLOSING,
        _ if tcp_flags & RST != 0 && !both_opened => CLOSING,
        Direction::Ingress => ct_flag::RX_CLOSING,
        Direction::Egress => ct_flag::TX_CLOSING,
    };
    entry.flags |= closing;
    if entry.flags & CLOSING == CLOSING {
        prolong(entry, node!(ct_close_timeout), tcp_flags, direction, now);
    }
}

/// Initializes an entry by its first packet.
#[inline(always)]
fn begin<A>(entry: &mut CtEntry, skb: Skb, flow: &Flow<A>, direction: Direction, now: u32) {
    let tcp = flow.is_tcp();
    refresh(entry, tcp, if tcp { SYN } else { 0 }, direction, now);
    if enabled!(ct_accounting) {
        (entry.packets, entry.bytes) = (1, u64::from(skb.len()));
    }
}

/// Sets an entry's lifetime by its protocol. Returns true if the packet is reported to monitors.
#[inline(always)]
fn refresh(entry: &mut CtEntry, tcp: bool, tcp_flags: u8, direction: Direction, now: u32) -> bool {
    let service = direction == Direction::Service;
    let lifetime = if tcp {
        if tcp_flags & SYN == 0 && entry.flags & ct_flag::SEEN_NON_SYN == 0 {
            entry.flags |= ct_flag::SEEN_NON_SYN;
        }
        if entry.flags & ct_flag::SEEN_NON_SYN == 0 {
            node!(ct_syn_timeout)
        } else if service {
            node!(ct_service_tcp_lifetime)
        } else {
            node!(ct_tcp_lifetime)
        }
    } else if service {
        node!(ct_service_any_lifetime)
    } else {
        node!(ct_any_lifetime)
    };
    prolong(entry, lifetime, tcp_flags, direction, now)
}

#[inline(always)]
fn prolong(entry: &mut CtEntry, lifetime: u32, tcp_flags: u8, direction: Direction, now: u32) -> bool {
    let end = now.wrapping_add(lifetime);
    // Most packets change nothing: without a write the cache line stays shared among CPUs.
    if entry.lifetime != end {
        entry.lifetime = end;
    }
    let ingress = direction == Direction::Ingress;
    let (before, last) = if ingress {
        (entry.rx_flags_seen, entry.last_rx_report)
    } else {
        (entry.tx_flags_seen, entry.last_tx_report)
    };
    let seen = before | tcp_flags & node!(ct_report_flags);
    if last.wrapping_add(node!(ct_report_interval)) >= now && before == seen {
        return false;
    }
    if ingress {
        (entry.rx_flags_seen, entry.last_rx_report) = (seen, now);
    } else {
        (entry.tx_flags_seen, entry.last_tx_report) = (seen, now);
    }
    true
}

/// Adds to a counter that other CPUs update concurrently, atomically.
#[inline(always)]
fn add(counter: *mut u64, value: u64) {
    // SAFETY: the counter is a field of a map entry, aligned to its size.
    unsafe {
        core::arch::asm!("lock *(u64 *)({counter} + 0) += {value}", counter = in(reg) counter, value = in(reg) value)
    }
}

/// Signals a full map to the agent, which collects expired entries, and returns the drop.
#[inline(always)]
fn full<F: Family>(skb: Skb, errno: i8) -> Drop {
    const CURRENT_CPU: u64 = 0xffff_ffff;
    let message = FillUp { signal: CT_FILL_UP, family: F::SIGNAL };
    // SAFETY: context and map are valid; the message outlives the call and has the given length.
    unsafe {
        bpf_perf_event_output(
            skb.raw().cast(),
            cilium_signals.handle(),
            CURRENT_CPU,
            (&raw const message).cast_mut().cast(),
            size_of::<FillUp>() as u64,
        )
    };
    drop_here!(CT_MAP_INSERTION_FAILED).with_detail(errno)
}
