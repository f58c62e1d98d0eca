//! Events of translations for monitors, thinned out by the aggregation level of the node.

use core::arch::asm;

use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::helpers::{
    bpf_get_current_cgroup_id, bpf_get_socket_cookie, bpf_ktime_get_ns, bpf_perf_event_output,
};
use datapath_abi::FAMILY_V6;
use datapath_abi::event::{self, TraceSockNotify, sock_protocol};
use datapath_abi::ratelimit::{RatelimitBucket, RatelimitKey, SOCKET_EVENTS};
use datapath_abi::trace::aggregation;

use crate::context::{Address, TCP};
use crate::family::Family;
use crate::maps::{cilium_events, cilium_ratelimit, cilium_ratelimit_metrics};

/// The system call whose address is translated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// connect.
    Connect,
    /// sendmsg.
    Message,
    /// recvmsg or getpeername.
    Reverse,
}

impl Call {
    /// True if the aggregation level reports translations of this call.
    #[inline(always)]
    fn is_reported(self) -> bool {
        match self {
            Call::Connect => true,
            Call::Message => setting!(monitor_aggregation) < aggregation::MEDIUM,
            Call::Reverse => setting!(monitor_aggregation) < aggregation::LOWEST,
        }
    }
}

/// Bits of the packed fields of [`report`].
const PROTOCOL_SHIFT: u32 = 8;
const FAMILY_SHIFT: u32 = 16;
const PORT_SHIFT: u32 = 32;

/// Reports the address at a point of a translation; `port` as on the wire.
#[inline(always)]
pub(crate) fn translation<F: Family>(
    ctx: Address,
    point: u8,
    call: Call,
    protocol: u8,
    address: F::Address,
    port: u16,
) {
    if !enabled!(trace_sock) || !call.is_reported() {
        return;
    }
    // The key of the ipcache has the address in the form of events.
    let key = F::ipcache_key(address);
    let protocol = if protocol == TCP { sock_protocol::TCP } else { sock_protocol::UDP };
    let what = u64::from(point)
        | u64::from(protocol) << PROTOCOL_SHIFT
        | u64::from(key.family == FAMILY_V6) << FAMILY_SHIFT
        | u64::from(port.to_be()) << PORT_SHIFT;
    report(ctx.0, what, &raw const key.address);
}

#[inline(never)]
fn report(ctx: *mut bpf_sock_addr, what: u64, address: *const [u32; 4]) -> i32 {
    const CURRENT_CPU: u64 = 0xffff_ffff;
    if setting!(monitor_aggregation) != aggregation::NONE && !is_due() {
        return 0;
    }
    let message = TraceSockNotify {
        kind: event::TRACE_SOCK,
        point: what as u8,
        protocol: (what >> PROTOCOL_SHIFT) as u8,
        is_ipv6: (what >> FAMILY_SHIFT) as u8,
        dport: (what >> PORT_SHIFT) as u16,
        pad: 0,
        // SAFETY: `ctx` is the context of this run, which is valid until the program returns.
        cookie: unsafe { bpf_get_socket_cookie(ctx.cast()) },
        // SAFETY: the helper takes no arguments.
        cgroup: unsafe { bpf_get_current_cgroup_id() },
        // SAFETY: the caller's stack, which outlives the call.
        address: unsafe { *address },
    };
    // SAFETY: context and map are valid; the message outlives the call and has the given length.
    unsafe {
        bpf_perf_event_output(
            ctx.cast(),
            cilium_events.handle(),
            CURRENT_CPU,
            (&raw const message).cast_mut().cast(),
            size_of::<TraceSockNotify>() as u64,
        )
    };
    0
}

/// Takes the token of this interval; false if it is taken, which is counted. Two CPUs may both get it.
#[inline(always)]
fn is_due() -> bool {
    let key = RatelimitKey { usage: SOCKET_EVENTS, ifindex: 0 };
    // SAFETY: the helper takes no arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: null or a map entry, which outlives the program's run; words of it are written whole.
    let Some(bucket) = (unsafe { cilium_ratelimit.rows().pointer(&key).as_mut() }) else {
        cilium_ratelimit.insert(&key, &RatelimitBucket { last_topup: now, tokens: 0 });
        return true;
    };
    if now.wrapping_sub(bucket.last_topup) >= setting!(trace_interval) {
        bucket.last_topup = now;
        return true;
    }
    // SAFETY: as above; all writers of this entry are atomic.
    match unsafe { cilium_ratelimit_metrics.rows().pointer(&key.usage).as_mut() } {
        Some(dropped) => {
            // SAFETY: an aligned word of a live map entry. The target has no atomic types.
            unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) &raw mut *dropped, in(reg) 1_u64) };
        }
        None => cilium_ratelimit_metrics.insert(&key.usage, &1),
    }
    false
}
