//! Packets that leave by the tunnel: with headers as the tunnel device would write them, without its way through the kernel.

use crate::hop;
use crate::packet::flow::{Flow, UDP};
use crate::packet::headers::{EthHeader, Ipv4Header, fold};
use crate::packet::ipv4::V4;
use crate::packet::skb::{Context, ETH_IPV4, ETH_LEN, Skb};
use crate::snat;
use crate::state::{Packet, Place};
use crate::{LEFT, NEXT};
use aya_ebpf::helpers::bpf_get_prandom_u32;
use datapath_abi::{FAMILY_V4, RemoteEndpointInfo, file, identity, ipcache_flag};

const FILE: u8 = file::ENCAP;

/// The addresses of a packet that leaves by a route.
pub(crate) const NO_TUNNEL: [u32; 2] = [0; 2];

/// The headers of UDP, and of VXLAN (RFC 7348) or Geneve (RFC 8926) without options, in words.
const UDP_WORDS: usize = 4;
const TUNNEL_WORDS: usize = 4;
const IP_WORDS: usize = size_of::<Ipv4Header>() / 2;
const ETH_WORDS: usize = size_of::<EthHeader>() / 2;
const OUTER_WORDS: usize = ETH_WORDS + IP_WORDS + UDP_WORDS + TUNNEL_WORDS;
const OUTER_LEN: u16 = 2 * OUTER_WORDS as u16;

/// The flag of a VXLAN header with a network identifier, and the protocol of Ethernet frames in a Geneve header.
const VXLAN_FLAGS: u16 = 0x0800u16.to_be();
const ETHERNET: u16 = 0x6558u16.to_be();
/// The version of Geneve and the length of its options, in units of four bytes, are in the first byte.
const OPTIONS_SHIFT: u32 = 8;
/// Version 4, a header of five words, and a hop limit.
const VERSION_IHL: u16 = 0x4500;
const HOPS: u16 = 64;
const ECN: u16 = 3;
const CONGESTED: u16 = 3;
const CAPABLE: u16 = 2;
/// Ephemeral ports of Linux, for a tunnel without a range.
const SOURCE_PORTS: [u16; 2] = [32768, 60999];

/// Writes the way of a request to the node that an entry of the ipcache has; [`LEFT`] for one that XDP cannot send, or that
/// the tunnel device fragments.
#[inline(never)]
pub(crate) fn route<F: Place>(
    raw: *mut Context,
    request: &mut Packet<F::Address>,
    info: &RemoteEndpointInfo,
    is_named: bool,
) -> u64 {
    let skb = Skb::from_raw(raw);
    const FLAGS: u8 = ipcache_flag::HAS_TUNNEL_ENDPOINT | ipcache_flag::IPV6_TUNNEL_ENDPOINT;
    let (node, source) = (info.tunnel_endpoint[0], snat::direct_routing_address::<V4>());
    if !enabled!(tunnel_ifindex) || info.flags & FLAGS != ipcache_flag::HAS_TUNNEL_ENDPOINT || source == 0 {
        return LEFT;
    }
    let option = if is_named { F::TUNNEL_OPTION_LEN } else { 0 };
    // The inner Ethernet header is a part of the outer packet.
    let added = OUTER_LEN - ETH_LEN as u16 + option;
    let len = u16::try_from(skb.len() + u32::from(added)).unwrap_or(u16::MAX);
    let Some(exit) = hop::exit::<V4>(skb, source, node, len) else { return LEFT };
    request.exit = exit;
    request.tunnel = [source, node];
    NEXT
}

/// Writes the headers of the tunnel before a packet of "world", and the option that names the frontend.
#[inline(never)]
pub(crate) fn encapsulate<F: Place>(raw: *mut Context, request: &Packet<F::Address>, is_named: bool) -> u64 {
    let skb = Skb::from_raw(raw);
    let option = if is_named { F::TUNNEL_OPTION_LEN } else { 0 };
    let Some(first) = skb.read::<u16>(ETH_LEN) else {
        return drop_here!(INVALID_PACKET_DROPPED).packed();
    };
    // RFC 6040, 4.1: routers can mark packets that the sender has declared capable.
    let class_shift = if F::NUMBER == FAMILY_V4 { 0 } else { 4 };
    let ecn = u16::from_be(first) >> class_shift & ECN;
    let ecn = if ecn == CONGESTED { CAPABLE } else { ecn };
    let payload = skb.len() as u16 + option + 2 * (UDP_WORDS + TUNNEL_WORDS) as u16;
    let [source, node] = request.tunnel;
    let words = |address: u32| [address as u16, (address >> 16) as u16];
    let ([source_low, source_high], [node_low, node_high]) = (words(source), words(node));
    // SAFETY: the helper takes no arguments. The network may fragment it, so that it needs an id.
    let id = unsafe { bpf_get_prandom_u32() } as u16;
    let mut ip = [
        (VERSION_IHL | ecn).to_be(),
        (payload + size_of::<Ipv4Header>() as u16).to_be(),
        id,
        0,
        (HOPS << 8 | u16::from(UDP)).to_be(),
        0,
        source_low,
        source_high,
        node_low,
        node_high,
    ];
    let mut sum = 0;
    for word in ip {
        sum += u32::from(word);
    }
    ip[5] = !fold(sum);
    let udp = [source_port::<F>(&request.flow).to_be(), node!(tunnel_port), payload.to_be(), 0];
    let first = match enabled!(tunnel_geneve) {
        true => [(option / 4 << OPTIONS_SHIFT).to_be(), ETHERNET],
        false => [VXLAN_FLAGS, 0],
    };
    let vni = identity::WORLD << 8;
    let [vni_high, vni_low] = [((vni >> 16) as u16).to_be(), (vni as u16).to_be()];
    let written = skb.prepend(OUTER_LEN + option) && {
        const IP: usize = ETH_LEN;
        const UDP: usize = IP + 2 * IP_WORDS;
        const TUNNEL: usize = UDP + 2 * UDP_WORDS;
        store(skb, ETH_LEN - 2, [ETH_IPV4])
            && store(skb, IP, ip)
            && store(skb, UDP, udp)
            && store(skb, TUNNEL, [first[0], first[1], vni_high, vni_low])
            && (!is_named || F::store_tunnel_option(skb, OUTER_LEN as usize, request.frontend))
    };
    if written { NEXT } else { drop_here!(ERROR_WRITING_TO_PACKET).packed() }
}

#[inline(always)]
fn store<const WORDS: usize>(skb: Skb, offset: usize, words: [u16; WORDS]) -> bool {
    let Some(at) = skb.header::<[u16; WORDS]>(offset) else { return false };
    // SAFETY: `header` checked the bounds; headers begin at even addresses.
    unsafe { at.write(words) };
    true
}

/// Returns the port that receivers spread flows by.
#[inline(always)]
fn source_port<F: Place>(flow: &Flow<F::Address>) -> u16 {
    const GOLDEN_RATIO: u32 = 0x9e37_79b1;
    let [low, high] =
        if node!(tunnel_source_ports) == [0; 2] { SOURCE_PORTS } else { node!(tunnel_source_ports) };
    let [a, b, c, d] = F::words(flow.source);
    let mixed =
        (a ^ b ^ c ^ d ^ u32::from(flow.sport) << 16 ^ u32::from(flow.dport)).wrapping_mul(GOLDEN_RATIO);
    let ports = u32::from(high - low) + 1;
    low + ((mixed >> 16) * ports >> 16) as u16
}
