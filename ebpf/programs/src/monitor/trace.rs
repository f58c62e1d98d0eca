//! Trace points of a packet: the event and the counter. Aggregation omits events of the points at which packets enter,
//! and most events of established connections; connection tracking selects the reported packets.

use crate::monitor::drop::{capture_len, send};
use crate::monitor::metrics;
use crate::packet::skb::{Context, ETH_IPV6, Skb};
use datapath_abi::event::{self, CaptureHeader, TraceNotify};
use datapath_abi::trace::{self, aggregation};
use datapath_abi::{direction, ep_flag, metric};

/// A packet at a point of the datapath.
#[derive(Clone, Copy)]
pub(crate) struct Trace {
    /// A trace point.
    pub(crate) point: u8,
    /// The reason for forwarding the packet.
    pub(crate) reason: u8,
    /// Whether it is reported even with aggregation of established connections.
    pub(crate) monitor: bool,
    /// The endpoint of this program.
    pub(crate) endpoint: u32,
    /// Its `ep_flag` bits; zero for programs of the host.
    pub(crate) flags: u32,
    pub(crate) src_label: u32,
    pub(crate) dst_label: u32,
    /// The destination endpoint, or zero.
    pub(crate) dst_id: u32,
    /// The egress interface of the packet or, at points where it enters, the ingress interface; or zero.
    pub(crate) ifindex: u32,
    /// Whether the device's packets have no Ethernet header.
    pub(crate) l3_device: bool,
    /// The packet's source address before a translation, in the format of map keys, at the points after that: into a
    /// pod, and to the network. Zero elsewhere.
    pub(crate) orig_ip: [u32; 4],
}

/// Counts a packet at a point and reports it, with the file and line of the caller.
macro_rules! trace {
    ($skb:expr, $trace:expr) => {
        $crate::monitor::trace::passed($skb, $trace, FILE, line!() as u16)
    };
}

/// True if events of this point are enabled, by the node and by the endpoint with these flags: aggregation omits points
/// at which packets enter from its lowest level on.
#[inline(always)]
pub(crate) fn wanted(point: u8, flags: u32) -> bool {
    let inbound = matches!(point, trace::FROM_LXC..=trace::FROM_NETWORK | trace::FROM_CRYPTO);
    let thinned = |level| inbound && level >= aggregation::LOWEST;
    enabled!(trace_notify)
        && !thinned(node!(monitor_aggregation))
        && flags & ep_flag::NO_TRACE_NOTIFY == 0
        && !thinned(ep_flag::aggregation(flags))
}

/// True if the node or the endpoint with these flags aggregates events of established connections.
#[inline(always)]
fn thins_connections(flags: u32) -> bool {
    node!(monitor_aggregation) >= aggregation::MEDIUM || ep_flag::aggregation(flags) >= aggregation::MEDIUM
}

#[inline(always)]
pub(crate) fn passed(skb: Skb, at: Trace, file: u8, line: u16) {
    let counted = match at.point {
        trace::TO_LXC => Some((metric::FORWARDED, direction::INGRESS)),
        trace::TO_HOST | trace::TO_STACK | trace::TO_OVERLAY | trace::TO_NETWORK => {
            Some((metric::FORWARDED, direction::EGRESS))
        }
        trace::FROM_HOST | trace::FROM_STACK | trace::FROM_OVERLAY | trace::FROM_NETWORK => {
            Some((metric::PLAINTEXT, direction::INGRESS))
        }
        _ => None,
    };
    if let Some((reason, dir)) = counted {
        metrics::count(reason, dir, file, line, skb.len());
    }
    if wanted(at.point, at.flags) && (at.monitor || !thins_connections(at.flags)) {
        let what = u64::from(at.point)
            | u64::from(at.reason) << 8
            | u64::from(at.endpoint as u16) << 16
            | u64::from(at.dst_id as u16) << 32
            | u64::from(at.l3_device) << L3_DEVICE_SHIFT;
        let labels = u64::from(at.src_label) | u64::from(at.dst_label) << 32;
        // Elsewhere null instead of a copy on the stack, which would cost the verifier additional states.
        let is_translated = at.point == trace::TO_LXC
            || at.point == trace::TO_NETWORK && (enabled!(masquerade_ipv4) || enabled!(masquerade_ipv6));
        let orig_ip = if is_translated { &raw const at.orig_ip } else { core::ptr::null() };
        report(skb.raw(), what, labels, at.ifindex, orig_ip);
    }
}

/// The bit of the packed fields of [`report`] that is set if the device has no Ethernet header.
const L3_DEVICE_SHIFT: u32 = 48;

#[inline(never)]
fn report(raw: *mut Context, what: u64, labels: u64, ifindex: u32, orig_ip: *const [u32; 4]) -> i32 {
    let skb = Skb::from_raw(raw);
    let len = skb.len();
    let cap = capture_len(len);
    let family = if skb.protocol() == ETH_IPV6 { event::flag::IPV6 } else { 0 };
    let device = if what >> L3_DEVICE_SHIFT & 1 != 0 { event::flag::L3_DEVICE } else { 0 };
    let message = TraceNotify {
        header: CaptureHeader {
            kind: event::TRACE,
            subtype: what as u8,
            source: (what >> 16) as u16,
            hash: skb.hash(),
            len_orig: len,
            len_cap: cap as u16,
            version: event::TRACE_VERSION,
            ext_version: 0,
        },
        src_label: labels as u32,
        dst_label: (labels >> 32) as u32,
        dst_id: (what >> 32) as u16,
        reason: (what >> 8) as u8,
        flags: family | device,
        ifindex,
        // SAFETY: null, or a pointer to the caller's stack, which outlives the call.
        orig_ip: if orig_ip.is_null() { [0; 4] } else { unsafe { *orig_ip } },
        ip_trace_id: 0,
    };
    send(skb, cap, &message);
    0
}
