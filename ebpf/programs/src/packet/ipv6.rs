//! IPv6.

use crate::maps::btf::Rows;
use crate::maps::{cilium_ct_any6_global, cilium_ct6_global, cilium_ipv6_frag_datagrams};
use crate::monitor::drop::Drop;
use crate::packet::family::Family;
use crate::packet::flow::{Datagram, Piece, Upper};
use crate::packet::headers::Ipv6Header;
use crate::packet::skb::{ETH_LEN, Skb};
use datapath_abi::{
    CtEntry, CtTuple6, EndpointConfig, FAMILY_V6, FragmentKey6, FragmentPorts, file, identity, signal, slot,
};

const FILE: u8 = file::IPV6;

/// Extension headers (IANA protocol numbers).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const NO_NEXT_HEADER: u8 = 59;
const DESTINATION_OPTIONS: u8 = 60;
/// Maximum number of extension headers; packets with more are dropped.
const EXTENSIONS: usize = 4;

/// The fragment header (RFC 8200, 4.5).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FragmentHeader {
    next_header: u8,
    reserved: u8,
    offset: u16,
    id: u32,
}

/// Bits of its offset field in network byte order: the fragment offset, and more fragments.
const OFFSET: u16 = 0xfff8u16.to_be();
const MORE: u16 = 1u16.to_be();

/// The last ICMPv6 type that is an error for the sender: unreachable, packet too big, time exceeded, parameter problem.
const LAST_ERROR: u8 = 4;
/// Messages of neighbour discovery, which are not forwarded.
pub(crate) const NEIGHBOUR_SOLICITATION: u8 = 135;
pub(crate) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// IPv6.
pub(crate) struct V6;

impl Family for V6 {
    type Header = Ipv6Header;
    type Address = [u32; 4];
    type FragmentKey = FragmentKey6;

    const NUMBER: u8 = FAMILY_V6;
    const BITS: u32 = 128;
    const SIGNAL: u32 = signal::FAMILY_V6;
    const FORWARD_SLOT: u32 = slot::IPV6_FROM_LXC_CONT;
    const NO_SERVICE_SLOT: u32 = slot::IPV6_NO_SERVICE;
    const POLICY_DENIED_SLOT: u32 = slot::IPV6_POLICY_DENIED;
    const POLICY_SLOT: u32 = slot::IPV6_POLICY;
    const FROM_HOST_SLOT: u32 = slot::IPV6_FROM_HOST;
    const HOST_INGRESS_SLOT: u32 = slot::IPV6_HOST_INGRESS;
    const HOST_EGRESS_SLOT: u32 = slot::IPV6_HOST_EGRESS;
    const ICMP: u8 = 58;
    const ECHO_REQUEST: u8 = 128;
    const ECHO_REPLY: u8 = 129;

    #[inline(always)]
    fn world() -> u32 {
        if enabled!(enable_ipv4) { identity::WORLD_IPV6 } else { identity::WORLD }
    }

    #[inline(always)]
    fn source(header: &Ipv6Header) -> [u32; 4] {
        header.source
    }

    #[inline(always)]
    fn destination(header: &Ipv6Header) -> [u32; 4] {
        header.destination
    }

    #[inline(always)]
    fn same(a: [u32; 4], b: [u32; 4]) -> bool {
        (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) == 0
    }

    #[inline(always)]
    fn words(address: [u32; 4]) -> [u32; 4] {
        address
    }

    #[inline(always)]
    fn from_words(words: [u32; 4]) -> [u32; 4] {
        words
    }

    #[inline(always)]
    fn own(endpoint: &EndpointConfig) -> [u32; 4] {
        endpoint.ipv6
    }

    #[inline(always)]
    fn is_neighbour_discovery(skb: Skb, header: &Ipv6Header) -> bool {
        if header.next_header != Self::ICMP {
            return false;
        }
        let mut kind = 0u8;
        let offset = ETH_LEN + size_of::<Ipv6Header>();
        skb.load(offset, &mut kind) && matches!(kind, NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT)
    }

    #[inline(always)]
    fn is_from_link(header: &Ipv6Header) -> bool {
        header.hop_limit == u8::MAX
    }

    #[inline(always)]
    fn hops(header: &Ipv6Header) -> u8 {
        header.hop_limit
    }

    #[inline(always)]
    fn decrement_hops(skb: Skb, header: &mut Ipv6Header) -> Result<(), Drop> {
        let hops = header.hop_limit;
        if hops <= 1 {
            return Err(drop_here!(TTL_EXCEEDED));
        }
        header.hop_limit = hops - 1;
        let next = header.next_header;
        skb.word_changed(u16::from_ne_bytes([next, hops]), u16::from_ne_bytes([next, hops - 1]));
        Ok(())
    }

    #[inline(always)]
    fn upper(skb: Skb, header: &Ipv6Header) -> Result<Upper, Drop> {
        let mut upper = Upper {
            protocol: header.next_header,
            offset: ETH_LEN + size_of::<Ipv6Header>(),
            piece: Piece::WHOLE,
            id: 0,
            shared_protocol: 0,
        };
        // Else the verifier would track different header state for each protocol read after it.
        upper = upper.any(skb);
        for _ in 0..EXTENSIONS {
            let length = match upper.protocol {
                HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | AUTHENTICATION => {
                    let mut extension = [0u8; 2];
                    if !skb.load(upper.offset, &mut extension) {
                        return Err(drop_here!(INVALID_PACKET_DROPPED));
                    }
                    let [next, length] = extension;
                    let authentication = upper.protocol == AUTHENTICATION;
                    upper.protocol = next;
                    if authentication {
                        (usize::from(length) + 2) << 2
                    } else {
                        (usize::from(length) + 1) << 3
                    }
                }
                // No receiver reassembles a fragment of a fragment.
                FRAGMENT if upper.piece != Piece::WHOLE => {
                    return Err(drop_here!(INVALID_IPV6_EXTENSION_HEADER));
                }
                FRAGMENT => {
                    let mut fragment = FragmentHeader::default();
                    if !skb.load(upper.offset, &mut fragment) {
                        return Err(drop_here!(INVALID_PACKET_DROPPED));
                    }
                    upper.protocol = fragment.next_header;
                    upper.shared_protocol = fragment.next_header;
                    upper.id = fragment.id;
                    upper.piece = match (fragment.offset & OFFSET, fragment.offset & MORE) {
                        (0, 0) => Piece::WHOLE,
                        (0, _) => Piece::FIRST,
                        _ => Piece::LATER,
                    };
                    size_of::<FragmentHeader>()
                }
                NO_NEXT_HEADER => return Err(drop_here!(INVALID_IPV6_EXTENSION_HEADER)),
                _ => return Ok(upper),
            };
            upper.offset += length;
            upper = upper.any(skb);
            // In a later fragment, payload follows the fragment header.
            if upper.piece == Piece::LATER {
                return Ok(upper);
            }
        }
        match upper.protocol {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | AUTHENTICATION | FRAGMENT | NO_NEXT_HEADER => {
                Err(drop_here!(INVALID_IPV6_EXTENSION_HEADER))
            }
            _ => Ok(upper),
        }
    }

    #[inline(always)]
    fn is_error(icmp_type: u8) -> bool {
        icmp_type >= 1 && icmp_type <= LAST_ERROR
    }

    #[inline(always)]
    fn passes_policy(_: [u8; 2]) -> bool {
        false
    }

    #[inline(always)]
    fn ct_tcp() -> Rows<CtTuple6, CtEntry> {
        cilium_ct6_global.rows()
    }

    #[inline(always)]
    fn ct_any() -> Rows<CtTuple6, CtEntry> {
        cilium_ct_any6_global.rows()
    }

    #[inline(always)]
    fn tracks_fragments() -> bool {
        enabled!(ipv6_fragments)
    }

    #[inline(always)]
    fn fragments() -> Rows<FragmentKey6, FragmentPorts> {
        cilium_ipv6_frag_datagrams.rows()
    }

    #[inline(always)]
    fn fragment_key(datagram: &Datagram<[u32; 4]>) -> FragmentKey6 {
        let (saddr, daddr) = (datagram.source, datagram.destination);
        FragmentKey6 { id: datagram.id, proto: datagram.protocol, row: 0, pad: [0; 2], saddr, daddr }
    }

    #[inline(always)]
    fn protocol_key(key: &FragmentKey6) -> Option<FragmentKey6> {
        match key.proto {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | AUTHENTICATION => {
                Some(FragmentKey6 { row: FragmentKey6::PROTOCOL, ..*key })
            }
            _ => None,
        }
    }
}
