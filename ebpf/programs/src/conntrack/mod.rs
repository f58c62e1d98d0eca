//! Connections: which packets belong together, and how long that is remembered.
//!
//! A connection through a pod's programs is one row under the tuple of its first packet, addresses reversed: `OUT` if the
//! pod opened it, `IN` if others did, and a second row for ICMP errors about it. A packet is looked up as a reply first
//! (with the direction's bit of the other side), then as one of the connection's own.
//!
//! A packet's way: [`flow::of`](crate::packet::flow::of), [`now`] once, [`lookup`], and [`create`] for a new
//! connection that may pass. Services: [`lookup_service`] and [`create_service`].

use crate::maps::cilium_signals;
use crate::monitor::drop::Drop;
use crate::packet::family::Family;
use crate::packet::flow::Flow;
use crate::packet::skb::{Skb, opaque};
use aya_ebpf::helpers::{bpf_jiffies64, bpf_ktime_get_ns, bpf_perf_event_output};
use datapath_abi::signal::{CT_FILL_UP, FillUp};
use datapath_abi::{CtEntry, CtTuple, ct_flag, file, tuple_flag};

const FILE: u8 = file::CONNTRACK;

/// TCP flags in their byte.
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// True for a packet that opens a connection: SYN alone. SYN|ACK answers one, perhaps late.
#[inline(always)]
fn opens(tcp_flags: u8) -> bool {
    tcp_flags & (SYN | ACK) == SYN
}

const CLOSING: u16 = ct_flag::RX_CLOSING | ct_flag::TX_CLOSING;

/// Where a packet is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Out of a pod.
    Egress,
    /// Into a pod.
    Ingress,
    /// To a service, before its translation.
    Service,
}

/// What a packet is to the connection it belongs to. The numbers are those of trace reasons.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// Its connection is not known.
    New = 0,
    /// It goes where the first packet went.
    Established = 1,
    /// It goes the other way.
    Reply = 2,
    /// An ICMP error about the connection.
    Related = 3,
}

/// What is known of a packet's connection: one packed number, as [`Flow`].
#[derive(Clone, Copy)]
pub(crate) struct Found(u64);

impl Found {
    const MONITOR_SHIFT: u32 = 2;
    const FLAGS_SHIFT: u32 = 32;
    const REV_NAT_SHIFT: u32 = 48;

    /// Nothing.
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

    /// True if this packet is reported to monitors even if established connections are reported from time to time only.
    #[inline(always)]
    pub(crate) fn monitor(self) -> bool {
        opaque(self.0) >> Self::MONITOR_SHIFT & 1 != 0
    }

    /// [`ct_flag`] bits of the row.
    #[inline(always)]
    pub(crate) fn flags(self) -> u16 {
        (opaque(self.0) >> Self::FLAGS_SHIFT) as u16
    }

    /// The service that was translated, big-endian; 0 for none.
    #[inline(always)]
    pub(crate) fn rev_nat(self) -> u16 {
        (opaque(self.0) >> Self::REV_NAT_SHIFT) as u16
    }
}

/// What a new row remembers beside the tuple.
#[derive(Clone, Copy, Default)]
pub(crate) struct State {
    /// Identity of the side that opened the connection.
    pub(crate) src_label: u32,
    /// [`ct_flag`] bits, such as `LB_LOOPBACK`.
    pub(crate) flags: u16,
    /// The service that was translated, big-endian.
    pub(crate) rev_nat: u16,
}

/// The time on the clock of lifetimes. Read it once a program: it costs 25 ns.
#[inline(always)]
pub(crate) fn now() -> u32 {
    const JIFFIES_SHIFT: u32 = 8;
    const NANOSECONDS: u64 = 1_000_000_000;
    if enabled!(jiffies_clock) {
        // SAFETY: no arguments.
        (unsafe { bpf_jiffies64() } >> JIFFIES_SHIFT) as u32
    } else {
        // SAFETY: no arguments.
        (unsafe { bpf_ktime_get_ns() } / NANOSECONDS) as u32
    }
}

/// Looks a packet up, as a reply first unless its destination was a service: then it cannot be one. Refreshes the row it
/// finds.
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
        // A reply or, by one more, an ICMP error about the connection.
        Some(found) => Found(found.0 + 1 + u64::from(flow.is_related())),
        None => {
            let key = forward::<F>(flow, direction);
            look::<F>(skb, &key, flow, direction, now).unwrap_or(Found::NEW)
        }
    };
    Found(skb.forget(found.0))
}

/// Remembers the connection of a packet, and that ICMP errors about it belong to it.
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
    begin(&mut entry, skb, flow, direction, now);
    if let Err(errno) = insert::<F>(&key, &entry, flow.is_tcp()) {
        return Err(full::<F>(skb, errno));
    }
    let flags = key.flags | tuple_flag::RELATED;
    let errors = CtTuple { dport: 0, sport: 0, nexthdr: F::ICMP, flags, ..key };
    entry.flags |= ct_flag::SEEN_NON_SYN;
    F::ct_any().insert(&errors, &entry).map_err(|errno| full::<F>(skb, errno))
}

/// The backend that a client's connection to a service went to, if it is known and the service is still the same.
/// A new connection on the ports of a closed one is not known. As in Cilium the grace time is for SYN|ACK alone, which may
/// belong to the closed connection.
#[inline(always)]
pub(crate) fn lookup_service<F: Family>(
    skb: Skb,
    flow: &Flow<F::Address>,
    rev_nat: u16,
    now: u32,
) -> Option<u32> {
    let key = reversed::<F>(flow, Direction::Service);
    // SAFETY: null or a row of the map, which outlives the program's run.
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

/// Remembers the backend of a client's connection to a service; also in place of another.
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

/// The service, big-endian, through which the pod that a packet enters has sent the packet itself; 0 if it has not. To be
/// asked of packets from the loopback address of services.
#[inline(always)]
pub(crate) fn sent_to_itself<F: Family>(skb: Skb, flow: &Flow<F::Address>) -> u16 {
    let key = CtTuple { flags: tuple_flag::OUT | related(flow), ..forward::<F>(flow, Direction::Ingress) };
    // SAFETY: null or a row of the map, which outlives the program's run.
    let rev_nat = match unsafe { row::<F>(&key, flow.is_tcp()).as_ref() } {
        Some(sent) if sent.flags & ct_flag::LB_LOOPBACK != 0 => sent.rev_nat_index,
        _ => 0,
    };
    skb.forget(u64::from(rev_nat)) as u16
}

/// The tuple under which a packet's connection is, if the packet is a reply; services have no other.
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

/// The tuple of a packet that goes where the first one went.
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

/// The row of a tuple, or null. One call for each map: the kernel puts the lookup of a map that it knows into the program.
#[inline(always)]
fn row<F: Family>(key: &CtTuple<F::Address>, tcp: bool) -> *mut CtEntry {
    if tcp {
        let row = F::ct_tcp().pointer(key);
        // SAFETY: sets a register that is not used. The compiler must do it here, so it does not make one call of both.
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

/// What is known of a tuple; its row is refreshed. A closed connection that begins again is not found.
#[inline(always)]
fn look<F: Family>(
    skb: Skb,
    key: &CtTuple<F::Address>,
    flow: &Flow<F::Address>,
    direction: Direction,
    now: u32,
) -> Option<Found> {
    // SAFETY: null or a row of the map, which outlives the program's run. Other CPUs may change it at the same time:
    // then one of both writes stays, each of which is right.
    let entry = unsafe { row::<F>(key, flow.is_tcp()).as_mut()? };
    let monitor = match hit(entry, skb, flow, direction, now) {
        Hit::Open { monitor } => monitor,
        Hit::Reopened => return None,
    };
    Some(Found::new(Status::Established, monitor, entry.flags, entry.rev_nat_index))
}

/// What a packet makes of the row it belongs to.
enum Hit {
    Open {
        monitor: bool,
    },
    /// It opens the connection once more.
    Reopened,
}

#[inline(always)]
fn hit<A>(entry: &mut CtEntry, skb: Skb, flow: &Flow<A>, direction: Direction, now: u32) -> Hit {
    let mut monitor = false;
    // The time of a row that both sides have closed runs out.
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

/// A packet with FIN or RST.
#[inline(always)]
fn close(entry: &mut CtEntry, tcp_flags: u8, direction: Direction, now: u32) {
    let both_opened = entry.rx_flags_seen & entry.tx_flags_seen & SYN != 0;
    let closing = match direction {
        // A service row sees one direction only.
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

/// The first packet of a row.
#[inline(always)]
fn begin<A>(entry: &mut CtEntry, skb: Skb, flow: &Flow<A>, direction: Direction, now: u32) {
    let tcp = flow.is_tcp();
    refresh(entry, tcp, if tcp { SYN } else { 0 }, direction, now);
    if enabled!(ct_accounting) {
        (entry.packets, entry.bytes) = (1, u64::from(skb.len()));
    }
}

/// Sets a row's lifetime by its protocol; true if monitors get a report.
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
    // Most packets change nothing, and other CPUs keep the row in their caches.
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

/// Adds to a counter that other CPUs add to.
#[inline(always)]
fn add(counter: *mut u64, value: u64) {
    // SAFETY: the counter is a field of a map's row, aligned to its size.
    unsafe {
        core::arch::asm!("lock *(u64 *)({counter} + 0) += {value}", counter = in(reg) counter, value = in(reg) value)
    }
}

/// Reports a full map to the agent, which collects rows, and returns the drop.
#[inline(always)]
fn full<F: Family>(skb: Skb, errno: i8) -> Drop {
    const CURRENT_CPU: u64 = 0xffff_ffff;
    let message = FillUp { signal: CT_FILL_UP, family: F::SIGNAL };
    // SAFETY: the message is live for the call and has the length given.
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
