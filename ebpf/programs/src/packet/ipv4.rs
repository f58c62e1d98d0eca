//! IPv4.

use crate::maps::btf::Rows;
use crate::maps::{cilium_ct_any4_global, cilium_ct4_global, cilium_ipv4_frag_datagrams};
use crate::monitor::drop::Drop;
use crate::packet::family::Family;
use crate::packet::flow::{Datagram, Piece, Upper};
use crate::packet::headers::{Ipv4Header, checksum_changed};
use crate::packet::skb::{ETH_LEN, Skb};
use datapath_abi::{
    CtEntry, CtTuple4, EndpointConfig, FAMILY_V4, FragmentKey4, FragmentPorts, file, identity, signal, slot,
};

const FILE: u8 = file::IPV4;

/// Bits of the fragment field in network byte order: more fragments, and the fragment offset.
const MORE: u16 = 0x2000u16.to_be();
const OFFSET: u16 = 0x1fffu16.to_be();
/// The shortest header, in words.
const MIN_WORDS: usize = 5;

const DESTINATION_UNREACHABLE: u8 = 3;
const FRAGMENTATION_NEEDED: u8 = 4;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;

/// IPv4.
pub(crate) struct V4;

impl Family for V4 {
    type Header = Ipv4Header;
    type Address = u32;
    type FragmentKey = FragmentKey4;

    const NUMBER: u8 = FAMILY_V4;
    const BITS: u32 = 32;
    const SIGNAL: u32 = signal::FAMILY_V4;
    const FORWARD_SLOT: u32 = slot::IPV4_FROM_LXC_CONT;
    const NO_SERVICE_SLOT: u32 = slot::IPV4_NO_SERVICE;
    const POLICY_DENIED_SLOT: u32 = slot::IPV4_POLICY_DENIED;
    const POLICY_SLOT: u32 = slot::IPV4_POLICY;
    const FROM_HOST_SLOT: u32 = slot::IPV4_FROM_HOST;
    const HOST_INGRESS_SLOT: u32 = slot::IPV4_HOST_INGRESS;
    const HOST_EGRESS_SLOT: u32 = slot::IPV4_HOST_EGRESS;
    const ICMP: u8 = 1;
    const ECHO_REQUEST: u8 = 8;
    const ECHO_REPLY: u8 = 0;

    #[inline(always)]
    fn world() -> u32 {
        if enabled!(enable_ipv6) { identity::WORLD_IPV4 } else { identity::WORLD }
    }

    #[inline(always)]
    fn source(header: &Ipv4Header) -> u32 {
        header.source
    }

    #[inline(always)]
    fn destination(header: &Ipv4Header) -> u32 {
        header.destination
    }

    #[inline(always)]
    fn same(a: u32, b: u32) -> bool {
        a == b
    }

    #[inline(always)]
    fn words(address: u32) -> [u32; 4] {
        [address, 0, 0, 0]
    }

    #[inline(always)]
    fn from_words(words: [u32; 4]) -> u32 {
        words[0]
    }

    #[inline(always)]
    fn own(endpoint: &EndpointConfig) -> u32 {
        endpoint.ipv4
    }

    #[inline(always)]
    fn is_neighbour_discovery(_: Skb, _: &Ipv4Header) -> bool {
        false
    }

    #[inline(always)]
    fn is_from_link(header: &Ipv4Header) -> bool {
        header.ttl == u8::MAX
    }

    #[inline(always)]
    fn hops(header: &Ipv4Header) -> u8 {
        header.ttl
    }

    #[inline(always)]
    fn decrement_hops(_: Skb, header: &mut Ipv4Header) -> Result<(), Drop> {
        let ttl = header.ttl;
        if ttl <= 1 {
            return Err(drop_here!(TTL_EXCEEDED));
        }
        header.ttl = ttl - 1;
        header.checksum = checksum_changed(header.checksum, u16::from(ttl), u16::from(ttl - 1));
        Ok(())
    }

    #[inline(always)]
    fn upper(_: Skb, header: &Ipv4Header) -> Result<Upper, Drop> {
        let words = usize::from(header.version_ihl & 0xf);
        if words < MIN_WORDS {
            return Err(drop_here!(INVALID_PACKET_DROPPED));
        }
        let piece = if header.fragment & (MORE | OFFSET) == 0 {
            Piece::WHOLE
        } else if header.fragment & OFFSET == 0 {
            Piece::FIRST
        } else {
            Piece::LATER
        };
        let (protocol, id) = (header.protocol, u32::from(header.id));
        Ok(Upper { protocol, offset: ETH_LEN + (words << 2), piece, id, shared_protocol: protocol })
    }

    #[inline(always)]
    fn is_error(icmp_type: u8) -> bool {
        matches!(icmp_type, DESTINATION_UNREACHABLE | TIME_EXCEEDED | PARAMETER_PROBLEM)
    }

    #[inline(always)]
    fn passes_policy(icmp: [u8; 2]) -> bool {
        enabled!(allow_icmp_frag_needed) && icmp == [DESTINATION_UNREACHABLE, FRAGMENTATION_NEEDED]
    }

    #[inline(always)]
    fn ct_tcp() -> Rows<CtTuple4, CtEntry> {
        cilium_ct4_global.rows()
    }

    #[inline(always)]
    fn ct_any() -> Rows<CtTuple4, CtEntry> {
        cilium_ct_any4_global.rows()
    }

    #[inline(always)]
    fn tracks_fragments() -> bool {
        enabled!(ipv4_fragments)
    }

    #[inline(always)]
    fn fragments() -> Rows<FragmentKey4, FragmentPorts> {
        cilium_ipv4_frag_datagrams.rows()
    }

    #[inline(always)]
    fn fragment_key(datagram: &Datagram<u32>) -> FragmentKey4 {
        let (daddr, saddr) = (datagram.destination, datagram.source);
        FragmentKey4 { daddr, saddr, id: datagram.id as u16, proto: datagram.protocol, pad: 0 }
    }

    #[inline(always)]
    fn protocol_key(_: &FragmentKey4) -> Option<FragmentKey4> {
        None
    }
}
