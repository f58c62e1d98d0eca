//! Next hops by the host's routes, which a CPU remembers until the next tick of the kernel's clock: at the rates that XDP is
//! for most packets of a tick go to few machines, and a look at the routes costs as much as half of all the rest.

use crate::maps::{xdp_hops_v4, xdp_hops_v6};
use crate::nodeport::fib::{Route, Routed};
use crate::packet::headers::Mac;
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::Skb;
use aya_ebpf::helpers::bpf_ktime_get_coarse_ns;

/// Number of next hops that a CPU remembers, a power of two.
pub(crate) const HOPS: usize = 64;

/// The next hop of packets from a device to a machine.
pub(crate) struct Hop<A> {
    tick: u64,
    destination: A,
    source: A,
    ifindex: u32,
    macs: [Mac; 2],
}

/// The next hops of an IP family.
pub(crate) trait Hops: Routed {
    fn hop(slot: u32) -> Option<&'static mut Hop<Self::Address>>;
}

impl Hops for V4 {
    #[inline(always)]
    fn hop(slot: u32) -> Option<&'static mut Hop<u32>> {
        xdp_hops_v4.get_mut(&slot)
    }
}

impl Hops for V6 {
    #[inline(always)]
    fn hop(slot: u32) -> Option<&'static mut Hop<[u32; 4]>> {
        xdp_hops_v6.get_mut(&slot)
    }
}

/// Returns the MAC addresses of a packet that leaves by the device it came by, as [`Route::back`].
#[inline(always)]
pub(crate) fn back<F: Hops>(skb: Skb, source: F::Address, destination: F::Address) -> Option<[Mac; 2]> {
    let [a, b, c, d] = F::words(destination);
    let mixed = a ^ b ^ c ^ d;
    let slot = (mixed ^ mixed >> 8 ^ mixed >> 16 ^ mixed >> 24) % HOPS as u32;
    // SAFETY: the helper takes no arguments and reads only the clock.
    let tick = unsafe { bpf_ktime_get_coarse_ns() };
    let hop = F::hop(slot)?;
    if hop.tick != tick
        || hop.ifindex != skb.ifindex()
        || !F::same(hop.destination, destination)
        || !F::same(hop.source, source)
    {
        let macs = Route::back::<F>(skb, source, destination, 0)?;
        (hop.ifindex, hop.macs, hop.tick) = (skb.ifindex(), macs, tick);
        (hop.destination, hop.source) = (destination, source);
    }
    Some(hop.macs)
}
