//! ICMP errors in the other family: the packet that they quote changes the family with them, so that the receiver finds the
//! socket that has sent it. They quote its header and eight bytes, as RFC 792 requires; routers may quote more.

use crate::monitor::drop::Drop;
use crate::nat::moved;
use crate::nat46x64::header::{Addresses, IcmpHeader, PseudoHeader, change_family, difference, ipv4_header};
use crate::nat46x64::{Kind, embed};
use crate::packet::family::Family as _;
use crate::packet::flow::{TCP, UDP};
use crate::packet::headers::{Ipv4Header, Ipv6Header, fold};
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{ETH_IPV4, ETH_IPV6, ETH_LEN, Skb};
use crate::pod::ndp::sum_of;
use crate::snat::TRANSLATED;
use aya_ebpf::bindings::__sk_buff;
use datapath_abi::file;
use datapath_abi::nat46x64 as embedding;

const FILE: u8 = file::NODEPORT;

const NO_OPTIONS: u8 = 0x45;
/// The fragment offset in the fragment field of an IPv4 header, in network byte order.
const FRAGMENT_OFFSET: u16 = 0x1fffu16.to_be();

/// The quoted part of an IP packet.
#[repr(C)]
struct Quoted<H> {
    header: H,
    upper: [u16; 4],
}

/// An ICMP message with its quote.
#[repr(C)]
struct Message4 {
    icmp: IcmpHeader,
    quoted: Quoted<Ipv4Header>,
}

/// An ICMPv6 message with its quote.
#[repr(C)]
struct Message6 {
    icmp: IcmpHeader,
    quoted: Quoted<Ipv6Header>,
}

const NOTHING_V4: Ipv4Header = Ipv4Header {
    version_ihl: 0,
    tos: 0,
    len: 0,
    id: 0,
    fragment: 0,
    ttl: 0,
    protocol: 0,
    checksum: 0,
    source: 0,
    destination: 0,
};
const NOTHING_V6: Ipv6Header = Ipv6Header {
    version_class_flow: 0,
    payload_len: 0,
    next_header: 0,
    hop_limit: 0,
    source: [0; 4],
    destination: [0; 4],
};

/// Makes an ICMP error in a packet of a [`Kind`] one of ICMPv6. A separate function: its paths join at the return.
#[inline(never)]
pub(super) fn to_ipv6(raw: *mut __sk_buff, kind: u64) -> u64 {
    match ipv6_of(Skb::from_raw(raw), Kind(kind as u32)) {
        Ok(()) => TRANSLATED,
        Err(why) => why.packed(),
    }
}

#[inline(always)]
fn ipv6_of(skb: Skb, kind: Kind) -> Result<(), Drop> {
    const LEN: usize = size_of::<Message6>();
    let Some(header) = V4::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing writes or moves the packet while this borrow is used.
    let ip = unsafe { &*header };
    let outer = Ipv6Header {
        version_class_flow: (6 << 28 | u32::from(ip.tos) << 20).to_be(),
        payload_len: (LEN as u16).to_be(),
        next_header: V6::ICMP,
        hop_limit: ip.ttl,
        // Routers and hosts of IPv4 have no other address in IPv6.
        source: embedding::prefixed(ip.source),
        destination: embed(ip.destination, kind.is_destination_prefixed()),
    };
    let mut old = Message4 { icmp: IcmpHeader::NONE, quoted: Quoted { header: NOTHING_V4, upper: [0; 4] } };
    if !skb.load(ETH_LEN + size_of::<Ipv4Header>(), &mut old) {
        return Err(drop_here!(CT_TRUNCATED_OR_INVALID_HEADER));
    }
    let Ok(message) = embedding::to_icmpv6(old.icmp.message()) else {
        return Err(drop_here!(UNKNOWN_ICMPV4_TYPE));
    };
    let old = old.quoted;
    let ip = &old.header;
    if ip.version_ihl != NO_OPTIONS {
        return Err(drop_here!(INVALID_IPV6_EXTENSION_HEADER));
    }
    if ip.fragment & FRAGMENT_OFFSET != 0 {
        return Err(drop_here!(IP_FRAGMENTATION_NOT_SUPPORTED));
    }
    let next_header = if ip.protocol == V4::ICMP { V6::ICMP } else { ip.protocol };
    let payload_len = u16::from_be(ip.len).saturating_sub(size_of::<Ipv4Header>() as u16).to_be();
    // The quoted packet has the opposite direction.
    let header = Ipv6Header {
        version_class_flow: (6 << 28 | u32::from(ip.tos) << 20).to_be(),
        payload_len,
        next_header,
        hop_limit: ip.ttl,
        source: embed(ip.source, kind.is_destination_prefixed()),
        destination: embed(ip.destination, kind.is_source_prefixed()),
    };
    let old_addresses = Addresses { source: ip.source, destination: ip.destination };
    let new_addresses = Addresses { source: header.source, destination: header.destination };
    let pseudo = difference(&old_addresses, &new_addresses, 0);
    let upper = quoted_upper(old.upper, next_header, pseudo);
    let mut new = Message6 { icmp: IcmpHeader::new(message), quoted: Quoted { header, upper } };
    let pseudo = PseudoHeader {
        source: outer.source,
        destination: outer.destination,
        len: (LEN as u32).to_be(),
        protocol: u32::from(V6::ICMP).to_be(),
    };
    new.icmp.checksum = !fold(sum_of(&new, sum_of(&pseudo, 0)));
    change_family(skb, ETH_IPV6)?;
    write(skb, &outer, &new)
}

/// Makes an ICMPv6 error one of ICMP. A separate function, as [`to_ipv6`].
#[inline(never)]
pub(super) fn to_ipv4(raw: *mut __sk_buff) -> u64 {
    match ipv4_of(Skb::from_raw(raw)) {
        Ok(()) => TRANSLATED,
        Err(why) => why.packed(),
    }
}

#[inline(always)]
fn ipv4_of(skb: Skb) -> Result<(), Drop> {
    const LEN: u16 = size_of::<Message4>() as u16;
    let Some(header) = V6::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing writes or moves the packet while this borrow is used.
    let outer = ipv4_header(unsafe { &*header }, V4::ICMP, LEN);
    let mut old = Message6 { icmp: IcmpHeader::NONE, quoted: Quoted { header: NOTHING_V6, upper: [0; 4] } };
    if !skb.load(ETH_LEN + size_of::<Ipv6Header>(), &mut old) {
        return Err(drop_here!(CT_TRUNCATED_OR_INVALID_HEADER));
    }
    let Ok(message) = embedding::to_icmp(old.icmp.message()) else {
        return Err(drop_here!(UNKNOWN_ICMPV6_TYPE));
    };
    let old = old.quoted;
    let ip = &old.header;
    if !embedding::embeds(ip.source) || !embedding::embeds(ip.destination) {
        return Err(drop_here!(NAT64));
    }
    if !matches!(ip.next_header, TCP | UDP | V6::ICMP) {
        return Err(drop_here!(INVALID_IPV6_EXTENSION_HEADER));
    }
    let protocol = if ip.next_header == V6::ICMP { V4::ICMP } else { ip.next_header };
    let header = ipv4_header(ip, protocol, u16::from_be(ip.payload_len));
    let old_addresses = Addresses { source: ip.source, destination: ip.destination };
    let new_addresses = Addresses { source: header.source, destination: header.destination };
    let pseudo = difference(&old_addresses, &new_addresses, 0);
    let upper = quoted_upper(old.upper, protocol, pseudo);
    let mut new = Message4 { icmp: IcmpHeader::new(message), quoted: Quoted { header, upper } };
    new.icmp.checksum = !fold(sum_of(&new, 0));
    change_family(skb, ETH_IPV4)?;
    write(skb, &outer, &new)
}

/// Returns the first bytes of a quoted transport header: an echo has another type, and UDP another checksum. That of a
/// quoted echo is not checked by receivers, and covers what is not quoted.
#[inline(always)]
fn quoted_upper(mut upper: [u16; 4], protocol: u8, pseudo: u32) -> [u16; 4] {
    if protocol == UDP && upper[3] != 0 {
        upper[3] = moved(upper[3], pseudo);
    }
    if protocol == V6::ICMP || protocol == V4::ICMP {
        let [kind, code] = upper[0].to_ne_bytes();
        let kind = match kind {
            V4::ECHO_REQUEST if protocol == V6::ICMP => V6::ECHO_REQUEST,
            V4::ECHO_REPLY if protocol == V6::ICMP => V6::ECHO_REPLY,
            V6::ECHO_REQUEST if protocol == V4::ICMP => V4::ECHO_REQUEST,
            V6::ECHO_REPLY if protocol == V4::ICMP => V4::ECHO_REPLY,
            kind => kind,
        };
        upper[0] = u16::from_ne_bytes([kind, code]);
    }
    upper
}

/// Writes header and message in place of the packet's.
#[inline(always)]
fn write<H, M>(skb: Skb, outer: &H, message: &M) -> Result<(), Drop> {
    if !skb.resize((ETH_LEN + size_of::<H>() + size_of::<M>()) as u32)
        || !skb.store(ETH_LEN, outer)
        || !skb.store(ETH_LEN + size_of::<H>(), message)
    {
        return Err(drop_here!(ERROR_WRITING_TO_PACKET));
    }
    Ok(())
}
