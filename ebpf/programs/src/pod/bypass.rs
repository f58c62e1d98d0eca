//! BPF host routing: packets of pods leave by the host's routes, past its stack.
//!
//! Only by devices that deliver past the stack what comes back ([`crate::device`]): a stateful firewall of the host that
//! saw one direction of a connection would drop its packets as invalid. The stack handles all other packets, also those
//! at their last hop or too large for their route, of which it informs the pod.

use crate::maps::cilium_devices;
use crate::monitor::drop::Drop;
use crate::nodeport::fib::Route;
use crate::nodeport::{NodePort, way};
use crate::packet::skb::{ETH_LEN, Skb};
use crate::snat::STEP;
use aya_ebpf::bindings::__sk_buff;
use datapath_abi::file;

const FILE: u8 = file::BPF_LXC;

/// Results of [`leave`] beside drops: the stack handles the packet; it was sent, with the verdict in the bits from
/// [`VERDICT_SHIFT`] on and the device's index below.
pub(crate) const TO_STACK: u64 = STEP;
const SENT: u64 = 2 * STEP;
const VERDICT_SHIFT: u32 = 32;

/// Returns the device and the verdict of a packet that was sent.
#[inline(always)]
pub(crate) fn sent(result: u64) -> Option<(u32, i32)> {
    (result & SENT != 0).then_some((result as u32, i32::from((result >> VERDICT_SHIFT) as u8)))
}

/// Sends a packet by the host's route, after its last change. A function of its own: its variables would be spilled on
/// the way of all packets of pods.
#[inline(never)]
pub(crate) fn leave<F: NodePort>(raw: *mut __sk_buff) -> u64 {
    match send::<F>(Skb::from_raw(raw)) {
        Ok(result) => result,
        Err(why) => why.packed(),
    }
}

#[inline(always)]
fn send<F: NodePort>(skb: Skb) -> Result<u64, Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    let (source, destination) = (F::source(ip), F::destination(ip));
    if F::hops(ip) <= 1 || F::is_unroutable(source) || F::is_unroutable(destination) {
        return Ok(TO_STACK);
    }
    let Some(route) = Route::past_stack::<F>(skb, source, destination, wire_len::<F>(skb))? else {
        return Ok(TO_STACK);
    };
    match cilium_devices.get(&route.ifindex()) {
        Some(device) if device.l3 & 1 == 0 => {}
        _ => return Ok(TO_STACK),
    }
    way::forward_hop::<F>(skb)?;
    Ok(SENT | u64::from(route.redirect() as u8) << VERDICT_SHIFT | u64::from(route.ifindex()))
}

/// Returns the length of the IP packet on the wire. For one that the device segments this is a lower bound, with the
/// shortest transport header: with an upper bound, all that fill the MTU would take the way through the stack.
#[inline(always)]
fn wire_len<F: NodePort>(skb: Skb) -> u16 {
    const UDP_LEN: usize = 8;
    let segment = skb.gso_size();
    if segment == 0 {
        (skb.len() - ETH_LEN as u32) as u16
    } else {
        (segment as usize + size_of::<F::Header>() + UDP_LEN) as u16
    }
}
