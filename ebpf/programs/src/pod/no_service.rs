//! Services without backends: replies with ICMP "port unreachable", as a host does for a closed port.

use crate::endpoint;
use crate::monitor::drop::Drop;
use crate::packet::family::Family;
use crate::packet::headers::{EthHeader, Ipv4Header, Mac, fold, mac};
use crate::packet::ipv4::V4;
use crate::packet::skb::{ETH_LEN, Skb};
use crate::pod::container::drop_sent;
use crate::pod::ndp;
use datapath_abi::file;

const FILE: u8 = file::LB;

/// ICMP type and code of "destination unreachable: port unreachable" (RFC 792; RFC 4443, 3.1).
const PORT_UNREACHABLE: [u8; 2] = [3, 3];
const PORT_UNREACHABLE_V6: (u8, u8) = (1, 4);

const ICMP: u8 = 1;
/// Version 4 and a header of five words.
const NO_OPTIONS: u8 = 0x45;
/// Bits of the fragment field in network byte order: the fragment offset.
const FRAGMENT_OFFSET: u16 = 0x1fffu16.to_be();
const DONT_FRAGMENT: u16 = 0x4000u16.to_be();
const HOPS: u8 = 64;

/// An ICMP error: the header of the rejected packet and the next eight bytes, which include its ports.
#[repr(C)]
struct ErrorMessage {
    kind: [u8; 2],
    checksum: u16,
    /// The MTU, of errors about the length.
    value: u32,
    quoted: Quoted,
}

#[repr(C)]
struct Quoted {
    header: Ipv4Header,
    upper: [u32; 2],
}

/// Rejects an IPv4 packet.
#[inline(always)]
pub(crate) fn handle_ipv4(skb: Skb) -> i32 {
    let Some(me) = endpoint::by_ifindex(skb.ifindex()) else {
        return drop_sent(skb, drop_here!(EP_NOT_READY), None);
    };
    refuse(skb, |_| mac(me.node_mac)).unwrap_or_else(|why| drop_sent(skb, why, Some(me)))
}

/// Rejects an IPv6 packet.
#[inline(always)]
pub(crate) fn handle_ipv6(skb: Skb) -> i32 {
    let Some(me) = endpoint::by_ifindex(skb.ifindex()) else {
        return drop_sent(skb, drop_here!(EP_NOT_READY), None);
    };
    refuse_v6(skb, |_| mac(me.node_mac)).unwrap_or_else(|why| drop_sent(skb, why, Some(me)))
}

/// As [`refuse`], for IPv6.
#[inline(always)]
pub(crate) fn refuse_v6(skb: Skb, own_mac: impl FnOnce(Mac) -> Mac) -> Result<i32, Drop> {
    let why = drop_here!(SERVICE_BACKEND_NOT_FOUND);
    ndp::refuse(skb, own_mac, PORT_UNREACHABLE_V6, None, why)
}

/// Turns the packet into an error from its destination to its sender, as [`error`].
#[inline(always)]
pub(crate) fn refuse(skb: Skb, own_mac: impl FnOnce(Mac) -> Mac) -> Result<i32, Drop> {
    error(skb, own_mac, (PORT_UNREACHABLE, 0), None, drop_here!(SERVICE_BACKEND_NOT_FOUND))
}

/// Turns the packet into an error to its sender, of a type and code and with a value for its second word, from `router`
/// or, without one, from the packet's destination, and redirects it to its interface. `own_mac` returns the interface's
/// MAC address, given the packet's destination. Packets with options and later fragments are dropped without a reply,
/// for the given reason.
#[inline(always)]
pub(crate) fn error(
    skb: Skb,
    own_mac: impl FnOnce(Mac) -> Mac,
    (kind, value): ([u8; 2], u32),
    router: Option<u32>,
    why: Drop,
) -> Result<i32, Drop> {
    const MESSAGE_LEN: usize = size_of::<ErrorMessage>();
    const LEN: usize = size_of::<Ipv4Header>() + MESSAGE_LEN;
    let mut message = ErrorMessage {
        kind,
        checksum: 0,
        value: value.to_be(),
        quoted: Quoted {
            header: Ipv4Header {
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
            },
            upper: [0; 2],
        },
    };
    if !skb.load(ETH_LEN, &mut message.quoted) {
        return Err(drop_here!(INVALID_PACKET_DROPPED));
    }
    let refused = &message.quoted.header;
    if refused.version_ihl != NO_OPTIONS || refused.fragment & FRAGMENT_OFFSET != 0 {
        return Err(why);
    }
    let source = match router {
        Some(router) => router,
        None => refused.destination,
    };
    let mut answer = Ipv4Header {
        version_ihl: NO_OPTIONS,
        tos: 0,
        len: (LEN as u16).to_be(),
        id: 0,
        fragment: DONT_FRAGMENT,
        ttl: HOPS,
        protocol: ICMP,
        checksum: 0,
        source,
        destination: refused.source,
    };
    answer.checksum = !fold(ndp::sum_of(&answer, 0));
    message.checksum = !fold(ndp::sum_of(&message, 0));
    if !skb.resize((ETH_LEN + LEN) as u32) {
        return Err(drop_here!(ERROR_WRITING_TO_PACKET));
    }
    let Some(header) = V4::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; the Ethernet header precedes it, and nothing moves the packet in between.
    unsafe {
        let eth = header.byte_sub(ETH_LEN).cast::<EthHeader>();
        let own = own_mac((*eth).destination);
        (*eth).destination = (*eth).source;
        (*eth).source = own;
    }
    if !skb.store(ETH_LEN, &answer) || !skb.store(ETH_LEN + size_of::<Ipv4Header>(), &message) {
        return Err(drop_here!(ERROR_WRITING_TO_PACKET));
    }
    Ok(skb.redirect(skb.ifindex()))
}
