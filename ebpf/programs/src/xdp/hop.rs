//! Next hops by the host's routes, which a CPU remembers until the next tick of the kernel's clock: at the rates that XDP is
//! for most packets of a tick go to few machines, and a look at the routes costs as much as half of all the rest.

use crate::maps::{xdp_hops_v4, xdp_hops_v6};
use crate::nodeport::fib::{Exit, Route, Routed};
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
    exit: Exit,
    /// Length of the longest packet that fits.
    mtu: u16,
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

/// Returns the way of a packet of this length, as [`Route::exit`].
#[inline(always)]
pub(crate) fn exit<F: Hops>(skb: Skb, source: F::Address, destination: F::Address, len: u16) -> Option<Exit> {
    let [a, b, c, d] = F::words(destination);
    let mixed = a ^ b ^ c ^ d;
    let slot = (mixed ^ mixed >> 8 ^ mixed >> 16 ^ mixed >> 24) % HOPS as u32;
    // SAFETY: the helper takes no arguments and reads only the clock.
    let tick = unsafe { bpf_ktime_get_coarse_ns() };
    let hop = F::hop(slot)?;
    if hop.tick != tick
        || hop.ifindex != skb.ifindex()
        || hop.mtu < len
        || !F::same(hop.destination, destination)
        || !F::same(hop.source, source)
    {
        let mut mtu = 0;
        let exit = Route::exit::<F>(skb, source, destination, len, &mut mtu)?;
        (hop.ifindex, hop.exit, hop.mtu, hop.tick) = (skb.ifindex(), exit, mtu, tick);
        (hop.destination, hop.source) = (destination, source);
    }
    Some(hop.exit)
}
