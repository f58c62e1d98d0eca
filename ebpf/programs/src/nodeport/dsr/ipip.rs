//! Packets in an outer IP header of the same family (RFC 2003, RFC 2473): the receiver finds the frontend in the packet.

use crate::nodeport::dsr::Dsr;
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
#[cfg(not(feature = "xdp"))]
use {
    crate::maps::btf::Rows,
    crate::maps::{cilium_lb4_health, cilium_lb6_health},
    crate::monitor::drop::Drop,
    crate::nodeport::dsr::too_big,
    crate::nodeport::fib::Route,
    crate::nodeport::way,
    crate::packet::flow::{Flow, TCP, UDP},
    crate::packet::skb::Skb,
    crate::snat,
    datapath_abi::{FAMILY_V6, LbBackend, file, mark},
};

#[cfg(not(feature = "xdp"))]
const FILE: u8 = file::NODEPORT;

/// The outer header of an IP family.
pub(crate) trait Outer: Dsr {
    /// The protocol number of a packet in an outer header.
    const PROTOCOL: u8;

    /// Returns the index of the device that adds outer headers; zero without one.
    #[cfg(not(feature = "xdp"))]
    fn device() -> u32;
    /// Returns the map of backends that sockets of health probes name.
    #[cfg(not(feature = "xdp"))]
    fn probes() -> Rows<u64, LbBackend<Self::Address>>;
    /// Returns the source of outer headers and the bits of it that a hash decides, in words of the wire.
    #[cfg(feature = "xdp")]
    fn sources() -> [[u32; 4]; 2];
}

impl Outer for V4 {
    const PROTOCOL: u8 = 4;

    #[cfg(not(feature = "xdp"))]
    #[inline(always)]
    fn device() -> u32 {
        node!(ipip_ifindex_ipv4)
    }

    #[cfg(not(feature = "xdp"))]
    #[inline(always)]
    fn probes() -> Rows<u64, LbBackend<u32>> {
        cilium_lb4_health.rows()
    }

    #[cfg(feature = "xdp")]
    #[inline(always)]
    fn sources() -> [[u32; 4]; 2] {
        [[node!(rss_ipv4), 0, 0, 0], [node!(rss_host_ipv4), 0, 0, 0]]
    }
}

impl Outer for V6 {
    const PROTOCOL: u8 = 41;

    #[cfg(not(feature = "xdp"))]
    #[inline(always)]
    fn device() -> u32 {
        node!(ipip_ifindex_ipv6)
    }

    #[cfg(not(feature = "xdp"))]
    #[inline(always)]
    fn probes() -> Rows<u64, LbBackend<[u32; 4]>> {
        cilium_lb6_health.rows()
    }

    #[cfg(feature = "xdp")]
    #[inline(always)]
    fn sources() -> [[u32; 4]; 2] {
        [node!(rss_ipv6), node!(rss_host_ipv6)]
    }
}

/// Sends a packet to a backend by the device that adds the outer header. The hop limit of the packet decreases, as a router
/// forwards it (RFC 2003, 3.1).
#[cfg(not(feature = "xdp"))]
#[inline(always)]
pub(crate) fn send<F: Outer>(skb: Skb, flow: &Flow<F::Address>, backend: F::Address) -> Result<i32, Drop> {
    if F::device() == 0 {
        return Err(drop_here!(NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT));
    }
    way::forward_hop::<F>(skb)?;
    // The outer packet must leave as it is.
    skb.set_mark(mark::SNAT_DONE);
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let length = F::length(unsafe { &*header });
    let added = F::HEADER_LEN as u16;
    // The device segments a large packet; its parts have been received by a link.
    let length = if skb.gso_size() == 0 { length.saturating_add(added) } else { 0 };
    let (source, mut mtu) = (snat::direct_routing_address::<F>(), 0);
    if let Err(why) = Route::for_length::<F>(skb, source, backend, length, &mut mtu) {
        if enabled!(dsr_icmp) && mtu > added && matches!(flow.protocol(), TCP | UDP) {
            // The tail call does not return unless the program is missing.
            too_big::hand_over::<F>(skb, mtu - added);
        }
        return Err(why);
    }
    if !skb.set_tunnel_key(0, F::words(backend), F::NUMBER == FAMILY_V6) {
        return Err(drop_here!(ERROR_WRITING_TO_PACKET));
    }
    Ok(skb.redirect(F::device()))
}
