//! Dropped packets: reason and source line, the event and the counter.

use crate::maps::cilium_events;
use crate::monitor::metrics;
use crate::packet::skb::{Context, ETH_IPV6, SHOT, Skb};
use aya_ebpf::helpers::bpf_perf_event_output;
use datapath_abi::ep_flag;
use datapath_abi::event::{self, CaptureHeader, DropNotify};

/// The reason of a drop (bits 0-7), the file (8-15) and line (16-31) of the decision, and a detail (41-47, signed).
#[derive(Clone, Copy)]
pub(crate) struct Drop(u64);

impl Drop {
    #[inline(always)]
    pub(crate) const fn new(reason: u8, file: u8, line: u32) -> Self {
        Self(reason as u64 | (file as u64) << 8 | (line as u64) << 16)
    }

    /// Returns it with a detail: an error number, or a value by which the reason is counted. From -64 to 63.
    #[inline(always)]
    pub(crate) const fn with_detail(self, detail: i8) -> Self {
        Self(self.0 | (detail as u64 & 0x7f) << DETAIL_SHIFT)
    }

    /// Returns the same value, which the verifier does not distinguish from others: paths with different drops join.
    #[inline(always)]
    pub(crate) fn any(self, skb: Skb) -> Self {
        Self(skb.forget(self.0))
    }

    /// Returns it as an integer, for functions of the object that are called; the upper byte is zero.
    #[inline(always)]
    pub(crate) const fn packed(self) -> u64 {
        self.0
    }

    /// Returns the drop of such an integer.
    #[inline(always)]
    pub(crate) const fn unpacked(packed: u64) -> Self {
        Self(packed)
    }

    #[inline(always)]
    pub(crate) const fn reason(self) -> u8 {
        self.0 as u8
    }
}

/// Creates a [`Drop`] with this reason at this line. The module's `FILE` is Cilium's file with the same function.
macro_rules! drop_here {
    ($reason:ident) => {
        $crate::monitor::drop::Drop::new(datapath_abi::drop::$reason, FILE, line!())
    };
}

/// Sender and receiver of a dropped packet, as far as known.
#[derive(Clone, Copy, Default)]
pub(crate) struct Parties {
    /// The endpoint of the dropping program.
    pub(crate) endpoint: u32,
    /// Its `ep_flag` bits; zero for programs of the host.
    pub(crate) flags: u32,
    pub(crate) src_label: u32,
    pub(crate) dst_label: u32,
    /// The destination endpoint, in programs of its ingress.
    pub(crate) dst_id: u32,
}

/// Counts and reports a drop. Returns its verdict.
#[inline(always)]
pub(crate) fn dropped(skb: Skb, why: Drop, direction: u8, parties: Parties) -> i32 {
    let quiet = parties.flags & ep_flag::NO_DROP_NOTIFY != 0;
    let place = why.0
        | u64::from(direction) << 32
        | u64::from(quiet) << QUIET_SHIFT
        | u64::from(parties.endpoint as u16) << 48;
    report(skb.raw(), skb.forget(place), parties.src_label, parties.dst_label, parties.dst_id)
}

/// The bit of the packed drop that disables the event.
const QUIET_SHIFT: u32 = 40;
/// The shift of the detail, which has seven bits.
const DETAIL_SHIFT: u32 = 41;

#[inline(never)]
fn report(raw: *mut Context, place: u64, src_label: u32, dst_label: u32, dst_id: u32) -> i32 {
    let skb = Skb::from_raw(raw);
    let (reason, file, line) = (place as u8, (place >> 8) as u8, (place >> 16) as u16);
    let len = skb.len();
    metrics::count(reason, (place >> 32) as u8, file, line, len);
    if enabled!(drop_notify) && place >> QUIET_SHIFT & 1 == 0 {
        let cap = capture_len(len);
        let flags = if skb.protocol() == ETH_IPV6 { event::flag::IPV6 } else { 0 };
        let message = DropNotify {
            header: CaptureHeader {
                kind: event::DROP,
                subtype: reason,
                source: (place >> 48) as u16,
                hash: skb.hash(),
                len_orig: len,
                len_cap: cap as u16,
                version: event::DROP_VERSION,
                ext_version: 0,
            },
            src_label,
            dst_label,
            dst_id,
            line,
            file,
            // Sign-extends the seven bits.
            ext_error: ((place >> DETAIL_SHIFT) as i8) << 1 >> 1,
            ifindex: skb.ifindex(),
            flags,
            pad: [0; 3],
            ip_trace_id: 0,
        };
        send(skb, cap, &message);
    }
    SHOT
}

/// Returns the number of packet bytes in an event.
#[inline(always)]
pub(crate) fn capture_len(len: u32) -> u32 {
    let limit = node!(trace_payload_len);
    if len < limit { len } else { limit }
}

/// Writes an event and `cap` bytes of the packet into this CPU's ring; it is lost without a reader.
#[inline(always)]
pub(crate) fn send<T>(skb: Skb, cap: u32, message: &T) {
    const CURRENT_CPU: u64 = 0xffff_ffff;
    // SAFETY: context and map are valid; the message outlives the call and has the given length.
    unsafe {
        bpf_perf_event_output(
            skb.raw().cast(),
            cilium_events.handle(),
            u64::from(cap) << 32 | CURRENT_CPU,
            (&raw const *message).cast_mut().cast(),
            size_of::<T>() as u64,
        )
    };
}
