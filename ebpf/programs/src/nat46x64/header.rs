//! Headers of a packet in the other family. The packet's length and every checksum over its addresses change with them.
//!
//! Packets with options or extension headers are refused (156), fragments (157), and protocols other than TCP, UDP and ICMP
//! (142). TCP and UDP keep all but the checksum. An ICMP echo gets another type; ICMP errors are in [`error`].

use crate::monitor::drop::Drop;
use crate::nat::{self, ZERO_IS_NONE};
use crate::nat46x64::{Kind, embed, error};
use crate::packet::family::Family as _;
use crate::packet::flow::{TCP, UDP};
use crate::packet::headers::{Ipv4Header, Ipv6Header, fold};
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{ETH_IPV4, ETH_IPV6, ETH_LEN, Skb};
use crate::pod::ndp::sum_of;
use crate::snat::{STEP, TRANSLATED};
use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::{bpf_csum_diff, bpf_get_prandom_u32};
use datapath_abi::file;
use datapath_abi::nat46x64::{self as embedding, Message, Unknown};

const FILE: u8 = file::NODEPORT;

/// Version 4 and a header of five words.
const NO_OPTIONS: u8 = 0x45;
/// The fragment field of an IPv4 header without the flag that forbids fragments, in network byte order.
const FRAGMENT: u16 = 0x3fffu16.to_be();
pub(super) const DONT_FRAGMENT: u16 = 0x4000u16.to_be();
/// IPv4 packets up to this length may be fragmented: hosts of IPv6 do not send shorter ones (RFC 7915, 5.1).
const MAX_FRAGMENTABLE: u16 = 1260;
/// Extension headers (IANA protocol numbers).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENTS: u8 = 44;
const AUTHENTICATION: u8 = 51;
const NO_NEXT_HEADER: u8 = 59;
const DESTINATION_OPTIONS: u8 = 60;

/// Offsets of the checksum in transport headers.
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
const ICMP_CHECKSUM: usize = 2;

/// Offset of the type in an Ethernet header.
const ETH_TYPE_OFFSET: usize = 12;
const UPPER_OF_IPV4: usize = ETH_LEN + size_of::<Ipv4Header>();
const UPPER_OF_IPV6: usize = ETH_LEN + size_of::<Ipv6Header>();

/// The header of an ICMP message: type and code, checksum, and a word.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IcmpHeader {
    pub(super) kind: [u8; 2],
    pub(super) checksum: u16,
    pub(super) word: u32,
}

impl IcmpHeader {
    pub(super) const NONE: Self = Self { kind: [0; 2], checksum: 0, word: 0 };

    #[inline(always)]
    pub(super) fn message(&self) -> Message {
        (self.kind, u32::from_be(self.word))
    }

    /// Returns the header of a message, without its checksum.
    #[inline(always)]
    pub(super) fn new((kind, word): Message) -> Self {
        Self { kind, checksum: 0, word: word.to_be() }
    }
}

/// The part of the pseudo header of IPv6 that IPv4 does not have for ICMP.
#[repr(C)]
pub(super) struct PseudoHeader {
    pub(super) source: [u32; 4],
    pub(super) destination: [u32; 4],
    pub(super) len: u32,
    pub(super) protocol: u32,
}

/// Both addresses of an IP header.
#[repr(C)]
pub(super) struct Addresses<A> {
    pub(super) source: A,
    pub(super) destination: A,
}

/// Returns the change of a sum of 16-bit words from one value to another, added to `seed`.
#[inline(always)]
pub(super) fn difference<A, B>(from: &A, to: &B, seed: u32) -> u32 {
    // SAFETY: both values outlive the call; their lengths are multiples of four.
    unsafe {
        bpf_csum_diff(
            (&raw const *from).cast_mut().cast(),
            size_of::<A>() as u32,
            (&raw const *to).cast_mut().cast(),
            size_of::<B>() as u32,
            seed,
        ) as u32
    }
}

/// The result for an ICMP error, which is unchanged: the next function has the room for the packet that it quotes.
const ERROR: u64 = 3 * STEP;

/// Makes an IPv4 packet of a [`Kind`] one of IPv6.
#[inline(always)]
pub(super) fn to_ipv6(skb: Skb, kind: Kind) -> u64 {
    let kind = u64::from(kind.0);
    match skb.forget(ipv6_without_quote(skb.raw(), kind)) {
        ERROR => skb.forget(error::to_ipv6(skb.raw(), kind)),
        result => result,
    }
}

/// A separate function: its paths join at the return.
#[inline(never)]
fn ipv6_without_quote(raw: *mut __sk_buff, kind: u64) -> u64 {
    match ipv6_of(Skb::from_raw(raw), Kind(kind as u32)) {
        Ok(step) => step,
        Err(why) => why.packed(),
    }
}

#[inline(always)]
fn ipv6_of(skb: Skb, kind: Kind) -> Result<u64, Drop> {
    let Some(header) = V4::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing moves the packet while this borrow is used.
    let ip = unsafe { &*header };
    if ip.version_ihl != NO_OPTIONS {
        return Err(drop_here!(INVALID_IPV6_EXTENSION_HEADER));
    }
    if ip.fragment & FRAGMENT != 0 {
        return Err(drop_here!(IP_FRAGMENTATION_NOT_SUPPORTED));
    }
    let len = u16::from_be(ip.len);
    if usize::from(len) < size_of::<Ipv4Header>() {
        return Err(drop_here!(INVALID_PACKET_DROPPED));
    }
    let (protocol, source, destination) = (ip.protocol, ip.source, ip.destination);
    let next_header = if protocol == V4::ICMP { V6::ICMP } else { protocol };
    let payload_len = len - size_of::<Ipv4Header>() as u16;
    let new = Ipv6Header {
        version_class_flow: (6 << 28 | u32::from(ip.tos) << 20).to_be(),
        payload_len: payload_len.to_be(),
        next_header,
        hop_limit: ip.ttl,
        source: embed(source, kind.is_source_prefixed()),
        destination: embed(destination, kind.is_destination_prefixed()),
    };
    let old = Addresses { source, destination };
    match protocol {
        TCP | UDP => {
            let at = if protocol == TCP { TCP_CHECKSUM } else { UDP_CHECKSUM };
            // Without a checksum, which IPv6 requires: the programs cannot read all of the payload.
            if protocol == UDP && skb.read::<u16>(UPPER_OF_IPV4 + at) == Some(0) {
                return Err(drop_here!(ERROR_WHILE_CORRECTING_L4_CHECKSUM));
            }
            replace_header(skb, ETH_IPV6, &new)?;
            let pseudo = difference(&old, &addresses(&new), 0);
            let flags = if protocol == UDP { ZERO_IS_NONE } else { 0 };
            nat::pseudo_header_replaced_with(skb, UPPER_OF_IPV6 + at, pseudo, flags)?;
        }
        V4::ICMP => {
            let mut icmp = IcmpHeader::NONE;
            if !skb.load(UPPER_OF_IPV4, &mut icmp) {
                return Err(drop_here!(CT_TRUNCATED_OR_INVALID_HEADER));
            }
            let message = match embedding::to_icmpv6(icmp.message()) {
                Ok(message) => message,
                Err(Unknown::Type) => return Err(drop_here!(UNKNOWN_ICMPV4_TYPE)),
                Err(Unknown::Code) => return Err(drop_here!(UNKNOWN_ICMPV4_CODE)),
            };
            if V4::is_error(icmp.kind[0]) {
                return Ok(ERROR);
            }
            let (source, destination) = (new.source, new.destination);
            let len = u32::from(payload_len).to_be();
            let pseudo = PseudoHeader { source, destination, len, protocol: u32::from(V6::ICMP).to_be() };
            replace_header(skb, ETH_IPV6, &new)?;
            replace_icmp(skb, UPPER_OF_IPV6, icmp, message)?;
            nat::pseudo_header_replaced(skb, UPPER_OF_IPV6 + ICMP_CHECKSUM, sum_of(&pseudo, 0))?;
        }
        _ => return Err(drop_here!(UNKNOWN_L4_PROTOCOL)),
    }
    Ok(TRANSLATED)
}

/// Makes an IPv6 packet of which both addresses contain one of IPv4 a packet of IPv4.
#[inline(always)]
pub(super) fn to_ipv4(skb: Skb) -> u64 {
    match skb.forget(ipv4_without_quote(skb.raw())) {
        ERROR => skb.forget(error::to_ipv4(skb.raw())),
        result => result,
    }
}

/// A separate function, as [`ipv6_without_quote`].
#[inline(never)]
fn ipv4_without_quote(raw: *mut __sk_buff) -> u64 {
    match ipv4_of(Skb::from_raw(raw)) {
        Ok(step) => step,
        Err(why) => why.packed(),
    }
}

#[inline(always)]
fn ipv4_of(skb: Skb) -> Result<u64, Drop> {
    let Some(header) = V6::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing moves the packet while this copy is made.
    let old = unsafe { *header };
    if !embedding::embeds(old.source) || !embedding::embeds(old.destination) {
        return Err(drop_here!(NAT64));
    }
    let protocol = if old.next_header == V6::ICMP { V4::ICMP } else { old.next_header };
    let payload_len = u16::from_be(old.payload_len);
    if payload_len > u16::MAX - size_of::<Ipv4Header>() as u16 {
        return Err(drop_here!(INVALID_PACKET_DROPPED));
    }
    let new = ipv4_header(&old, protocol, payload_len);
    match old.next_header {
        TCP | UDP => {
            let at = if protocol == TCP { TCP_CHECKSUM } else { UDP_CHECKSUM };
            replace_header(skb, ETH_IPV4, &new)?;
            let ipv4 = Addresses { source: new.source, destination: new.destination };
            let pseudo = difference(&addresses(&old), &ipv4, 0);
            let flags = if protocol == UDP { ZERO_IS_NONE } else { 0 };
            nat::pseudo_header_replaced_with(skb, UPPER_OF_IPV4 + at, pseudo, flags)?;
        }
        V6::ICMP => {
            let mut icmp = IcmpHeader::NONE;
            if !skb.load(UPPER_OF_IPV6, &mut icmp) {
                return Err(drop_here!(CT_TRUNCATED_OR_INVALID_HEADER));
            }
            let message = match embedding::to_icmp(icmp.message()) {
                Ok(message) => message,
                Err(Unknown::Type) => return Err(drop_here!(UNKNOWN_ICMPV6_TYPE)),
                Err(Unknown::Code) => return Err(drop_here!(UNKNOWN_ICMPV6_CODE)),
            };
            if V6::is_error(icmp.kind[0]) {
                return Ok(ERROR);
            }
            let (source, destination) = (old.source, old.destination);
            let len = u32::from(payload_len).to_be();
            let pseudo = PseudoHeader { source, destination, len, protocol: u32::from(V6::ICMP).to_be() };
            replace_header(skb, ETH_IPV4, &new)?;
            replace_icmp(skb, UPPER_OF_IPV4, icmp, message)?;
            nat::pseudo_header_replaced(skb, UPPER_OF_IPV4 + ICMP_CHECKSUM, !sum_of(&pseudo, 0))?;
        }
        HOP_BY_HOP | ROUTING | FRAGMENTS | AUTHENTICATION | NO_NEXT_HEADER | DESTINATION_OPTIONS => {
            return Err(drop_here!(INVALID_IPV6_EXTENSION_HEADER));
        }
        _ => return Err(drop_here!(UNKNOWN_L4_PROTOCOL)),
    }
    Ok(TRANSLATED)
}

/// Returns the IPv4 header in place of one of IPv6.
#[inline(always)]
pub(super) fn ipv4_header(old: &Ipv6Header, protocol: u8, payload_len: u16) -> Ipv4Header {
    let len = payload_len + size_of::<Ipv4Header>() as u16;
    // The packet has no id: routers must not fragment it, or it gets one.
    let (id, fragment) = if len > MAX_FRAGMENTABLE {
        (0, DONT_FRAGMENT)
    } else {
        // SAFETY: the helper takes no arguments.
        (unsafe { bpf_get_prandom_u32() } as u16, 0)
    };
    let mut new = Ipv4Header {
        version_ihl: NO_OPTIONS,
        tos: (u32::from_be(old.version_class_flow) >> 20) as u8,
        len: len.to_be(),
        id,
        fragment,
        ttl: old.hop_limit,
        protocol,
        checksum: 0,
        source: embedding::embedded(old.source),
        destination: embedding::embedded(old.destination),
    };
    new.checksum = !fold(sum_of(&new, 0));
    new
}

#[inline(always)]
fn addresses(ip: &Ipv6Header) -> Addresses<[u32; 4]> {
    Addresses { source: ip.source, destination: ip.destination }
}

/// Writes an IP header of the other family in place of the packet's.
#[inline(always)]
fn replace_header<T>(skb: Skb, protocol: u16, header: &T) -> Result<(), Drop> {
    change_family(skb, protocol)?;
    if !skb.store(ETH_LEN, header) {
        return Err(drop_here!(ERROR_WRITING_TO_PACKET));
    }
    Ok(())
}

/// Gives a packet the room for the header of the other family.
#[inline(always)]
pub(super) fn change_family(skb: Skb, protocol: u16) -> Result<(), Drop> {
    if !skb.change_protocol(protocol) || !skb.store_quietly(ETH_TYPE_OFFSET, &protocol) {
        return Err(drop_here!(ERROR_WRITING_TO_PACKET));
    }
    Ok(())
}

/// Writes type and code of an echo, and updates its checksum.
#[inline(always)]
fn replace_icmp(skb: Skb, at: usize, old: IcmpHeader, message: Message) -> Result<(), Drop> {
    let new = IcmpHeader { checksum: old.checksum, ..IcmpHeader::new(message) };
    if !skb.store_quietly(at, &new) {
        return Err(drop_here!(ERROR_WRITING_TO_PACKET));
    }
    nat::content_replaced(skb, at + ICMP_CHECKSUM, difference(&old, &new, 0))
}
