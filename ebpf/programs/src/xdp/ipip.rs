//! Packets that leave in an outer IP header, as the devices of IPIP would write it.

use crate::hop;
use crate::nodeport::dsr::ipip::Outer;
use crate::packet::headers::{EthHeader, Ipv4Header, Ipv6Header, fold};
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{Context, ETH_LEN, Skb};
use crate::snat;
use crate::state::{Packet, Place};
use crate::{LEFT, NEXT};
use aya_ebpf::helpers::bpf_get_prandom_u32;
use datapath_abi::file;

const FILE: u8 = file::ENCAP;

/// Hop limit of outer headers.
const HOPS: u8 = 64;

/// Writes outer headers of an IP family.
pub(crate) trait Writer: Outer {
    /// Writes the header around a packet of this family, which begins behind the space for it; false if it is too short.
    fn write(skb: Skb, source: [u32; 4], destination: [u32; 4]) -> bool;
}

impl Writer for V4 {
    #[inline(always)]
    fn write(skb: Skb, source: [u32; 4], destination: [u32; 4]) -> bool {
        const LEN: usize = size_of::<Ipv4Header>();
        let Some([class, len]) = skb.read::<[u16; 2]>(ETH_LEN + LEN) else { return false };
        let len = u16::from_be(len) + LEN as u16;
        let class = ecn(u16::from_be(class) as u8);
        // SAFETY: the helper takes no arguments. The network may fragment it, so that it needs an id.
        let id = unsafe { bpf_get_prandom_u32() } as u16;
        let words = |address: u32| [address as u16, (address >> 16) as u16];
        let ([from_low, from_high], [to_low, to_high]) = (words(source[0]), words(destination[0]));
        let mut ip = [
            u16::from_ne_bytes([0x45, class]),
            len.to_be(),
            id,
            0,
            u16::from_ne_bytes([HOPS, Self::PROTOCOL]),
            0,
            from_low,
            from_high,
            to_low,
            to_high,
        ];
        let mut sum = 0;
        for word in ip {
            sum += u32::from(word);
        }
        ip[5] = !fold(sum);
        skb.store(ETH_LEN, &ip)
    }
}

impl Writer for V6 {
    #[inline(always)]
    fn write(skb: Skb, source: [u32; 4], destination: [u32; 4]) -> bool {
        const LEN: usize = size_of::<Ipv6Header>();
        const VERSION: u32 = 6;
        let Some([first, _, len]) = skb.read::<[u16; 3]>(ETH_LEN + LEN) else { return false };
        let class = u32::from(ecn((u16::from_be(first) >> 4) as u8));
        let header = Ipv6Header {
            version_class_flow: (VERSION << 28 | class << 20).to_be(),
            payload_len: (u16::from_be(len) + LEN as u16).to_be(),
            next_header: Self::PROTOCOL,
            hop_limit: HOPS,
            source,
            destination,
        };
        skb.store(ETH_LEN, &header)
    }
}

/// Returns the congestion bits of an outer header: routers can mark packets that the sender has declared capable (RFC
/// 6040, 4.1).
#[inline(always)]
fn ecn(class: u8) -> u8 {
    const MASK: u8 = 3;
    const CAPABLE: u8 = 2;
    if class & MASK == MASK { CAPABLE } else { class & MASK }
}

/// Writes the way of a request to its backend; [`LEFT`] for one that XDP cannot send.
#[inline(never)]
pub(crate) fn route<F: Place>(raw: *mut Context, request: &mut Packet<F::Address>) -> u64 {
    let skb = Skb::from_raw(raw);
    request.source = snat::direct_routing_address::<F>();
    if F::is_unspecified(request.source) {
        return LEFT;
    }
    let Some(header) = F::header(skb) else { return LEFT };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let len = F::length(unsafe { &*header }).saturating_add(F::HEADER_LEN as u16);
    match hop::exit::<F>(skb, request.source, request.peer.address, len) {
        Some(exit) => {
            request.exit = exit;
            NEXT
        }
        None => LEFT,
    }
}

/// Writes the outer header before a packet.
#[inline(never)]
pub(crate) fn encapsulate<F: Place>(raw: *mut Context, request: &Packet<F::Address>) -> u64 {
    let skb = Skb::from_raw(raw);
    let Some(eth) = skb.read::<[u16; size_of::<EthHeader>() / 2]>(0) else {
        return drop_here!(INVALID_PACKET_DROPPED).packed();
    };
    let written = skb.prepend(F::HEADER_LEN as u16)
        && skb.store(0, &eth)
        && F::write(skb, source::<F>(request), F::words(request.peer.address));
    if written { NEXT } else { drop_here!(ERROR_WRITING_TO_PACKET).packed() }
}

/// Returns the source of the outer header: of the range that spreads flows over the receive queues of backends, or the
/// node's address.
#[inline(always)]
fn source<F: Place>(request: &Packet<F::Address>) -> [u32; 4] {
    let [range, host] = F::sources();
    if range == [0; 4] {
        return F::words(request.source);
    }
    let flow = &request.flow;
    let [a, b, c, d] = F::words(flow.source);
    let ports = u32::from(flow.sport) << 16 | u32::from(flow.dport);
    // The last steps of MurmurHash3, after which all bits depend on all.
    let mut mixed = a ^ b ^ c ^ d ^ ports;
    mixed = (mixed ^ mixed >> 16).wrapping_mul(0x85eb_ca6b);
    mixed = (mixed ^ mixed >> 13).wrapping_mul(0xc2b2_ae35);
    mixed ^= mixed >> 16;
    [0, 1, 2, 3].map(|word: u32| range[word as usize] | mixed.rotate_left(8 * word) & host[word as usize])
}
