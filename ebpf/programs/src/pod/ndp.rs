//! ICMPv6 replies on behalf of the node: neighbour discovery of pods, and hop limit exceeded.

use crate::endpoint;
use crate::endpoint::deliver;
use crate::monitor::drop::Drop;
use crate::packet::family::Family;
use crate::packet::headers::{EthHeader, Ipv6Header, Mac, fold, mac};
use crate::packet::ipv6::{NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, V6};
use crate::packet::skb::{ETH_LEN, PASS, Skb};
use crate::pod::container::drop_sent;
use aya_ebpf::helpers::bpf_csum_diff;
use datapath_abi::{EndpointConfig, file, lxc_flag, slot};

const FILE: u8 = file::ICMP6;

const ICMPV6: u8 = 58;
pub(crate) const TIME_EXCEEDED: u8 = 3;
const IPV6_LEN: usize = size_of::<Ipv6Header>();
const ICMP_OFFSET: usize = ETH_LEN + IPV6_LEN;
const DESTINATION_OFFSET: usize = 24;

/// Flags of an advertisement (RFC 4861, 4.4), in network byte order.
const ROUTER: u32 = 0x8000_0000u32.to_be();
const SOLICITED: u32 = 0x4000_0000u32.to_be();
const OVERRIDE: u32 = 0x2000_0000u32.to_be();
/// Option: link-layer address of the target, one unit of eight bytes.
const TARGET_LINK_LAYER: [u8; 2] = [2, 1];
/// Hop limit of neighbour discovery: proves that no router forwarded the packet.
const LINK_HOPS: u8 = 255;

/// A neighbour solicitation without options.
#[repr(C)]
#[derive(Default)]
struct Solicitation {
    kind: u8,
    code: u8,
    checksum: u16,
    reserved: u32,
    target: [u32; 4],
}

/// A neighbour advertisement with the target's link-layer address.
#[repr(C)]
struct Advertisement {
    kind: u8,
    code: u8,
    checksum: u16,
    flags: u32,
    target: [u32; 4],
    option: [u8; 2],
    mac: [u16; 3],
}

/// The pseudo-header that an ICMPv6 checksum covers besides the message (RFC 8200, 8.1).
#[repr(C)]
struct PseudoHeader {
    source: [u32; 4],
    destination: [u32; 4],
    len: u32,
    next_header: u32,
}

/// Tail-calls the program of solicitations, and passes advertisements for the link to the stack. `None` for those that the
/// stack would forward: they are packets like any other.
#[inline(always)]
pub(crate) fn dispatch(skb: Skb, me: &EndpointConfig) -> Option<Result<i32, Drop>> {
    let mut kind = 0u8;
    if !skb.load(ICMP_OFFSET, &mut kind) {
        return Some(Err(drop_here!(INVALID_PACKET_DROPPED)));
    }
    if kind != NEIGHBOUR_SOLICITATION {
        let destination = destination(skb)?;
        // On a bridge of another plugin the node has addresses that are not in the map.
        let is_for_node = !enabled!(arp_responder)
            || is_on_link(destination)
            || endpoint::local::<V6>(destination).is_some_and(|row| row.flags & lxc_flag::HOST != 0);
        return is_for_node.then(|| Ok(pass(skb, me)));
    }
    skb.tail_call(slot::ICMP6_NS);
    Some(Err(drop_here!(MISSED_TAIL_CALL)))
}

#[inline(always)]
fn destination(skb: Skb) -> Option<[u32; 4]> {
    let mut destination = [0u32; 4];
    skb.load(ETH_LEN + DESTINATION_OFFSET, &mut destination).then_some(destination)
}

/// True for a link-local address, and for a multicast address of this scope: no router forwards packets to them.
#[inline(always)]
fn is_on_link(address: [u32; 4]) -> bool {
    const LOCAL: [u32; 2] = [0xffc0_0000u32.to_be(), 0xfe80_0000u32.to_be()];
    const MULTICAST: [u32; 2] = [0xff0f_0000u32.to_be(), 0xff02_0000u32.to_be()];
    address[0] & LOCAL[0] == LOCAL[1] || address[0] & MULTICAST[0] == MULTICAST[1]
}

/// Passes a message to the stack. Without the mark the rule against unknown pods would drop it.
#[inline(always)]
fn pass(skb: Skb, me: &EndpointConfig) -> i32 {
    deliver::to_stack(skb, me.identity);
    PASS
}

/// Passes a solicitation to the stack if it is sent to the link or to its target.
#[inline(always)]
fn pass_to(skb: Skb, me: &EndpointConfig, target: [u32; 4]) -> Result<i32, Drop> {
    match destination(skb) {
        Some(destination) if is_on_link(destination) || V6::same(destination, target) => Ok(pass(skb, me)),
        _ => Err(drop_here!(UNKNOWN_L3_TARGET_ADDRESS)),
    }
}

/// Answers a pod's solicitation: for the router and for pods of this node with the MAC address of the host's side.
/// Solicitations for the host are passed to the stack, which also updates its neighbour table; any other is dropped, and
/// so is one that the stack would forward.
#[inline(always)]
pub(crate) fn handle(skb: Skb) -> i32 {
    let Some(me) = endpoint::by_ifindex(skb.ifindex()) else {
        return drop_sent(skb, drop_here!(EP_NOT_READY), None);
    };
    match answer(skb, me) {
        Ok(verdict) => verdict,
        Err(why) => drop_sent(skb, why, Some(me)),
    }
}

#[inline(always)]
fn answer(skb: Skb, me: &EndpointConfig) -> Result<i32, Drop> {
    let mut solicitation = Solicitation::default();
    if !skb.load(ICMP_OFFSET, &mut solicitation) {
        return Err(drop_here!(INVALID_PACKET_DROPPED));
    }
    let target = solicitation.target;
    // Duplicate address detection for the pod's own address must not find one.
    if V6::same(target, me.ipv6) {
        return pass_to(skb, me, target);
    }
    let router = node!(router_ipv6);
    let flags = if V6::same(target, router) {
        ROUTER | SOLICITED
    } else if enabled!(per_packet_lb) && V6::same(target, node!(service_loopback_ipv6)) {
        // The source of a pod's packets to itself, to which the pod replies.
        SOLICITED | OVERRIDE
    } else {
        match endpoint::local::<V6>(target) {
            Some(row) if row.flags & lxc_flag::HOST != 0 => return pass_to(skb, me, target),
            Some(_) => SOLICITED | OVERRIDE,
            None => return Err(drop_here!(UNKNOWN_L3_TARGET_ADDRESS)),
        }
    };
    let message = Advertisement {
        kind: NEIGHBOUR_ADVERTISEMENT,
        code: 0,
        checksum: 0,
        flags,
        target,
        option: TARGET_LINK_LAYER,
        mac: mac(me.node_mac),
    };
    reply(
        skb,
        |_| mac(me.node_mac),
        router,
        LINK_HOPS,
        message,
        |message, checksum| message.checksum = checksum,
    )
}

/// An error about a packet: quotes its header and the following bytes, which suffice to find its socket.
#[repr(C)]
struct ErrorMessage {
    kind: u8,
    code: u8,
    checksum: u16,
    /// The MTU, of errors about the length.
    value: u32,
    quoted: Quoted,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Quoted {
    header: Ipv6Header,
    upper: [u32; 2],
}

/// Hop limit of an error message, as in the stack.
const ERROR_HOPS: u8 = 64;
/// ICMPv6 types below this one are errors, to which no error is sent (RFC 4443, 2.4).
const FIRST_INFORMATIONAL: u32 = 128;

/// Sends "time exceeded" from the router for a pod's packet with an exhausted hop limit (RFC 4443, 3.3).
#[inline(always)]
pub(crate) fn time_exceeded(skb: Skb) -> i32 {
    let Some(me) = endpoint::by_ifindex(skb.ifindex()) else {
        return drop_sent(skb, drop_here!(EP_NOT_READY), None);
    };
    let own = |_| mac(me.node_mac);
    match refuse(skb, own, (TIME_EXCEEDED, 0), Some(node!(router_ipv6)), drop_here!(TTL_EXCEEDED)) {
        Ok(verdict) => verdict,
        Err(why) => drop_sent(skb, why, Some(me)),
    }
}

/// Replies to a pod's packet with an ICMPv6 error of a type and code, from the router or, without one, from the
/// packet's destination. If the packet is an ICMPv6 error itself, it is dropped for the given reason.
#[inline(always)]
pub(crate) fn refuse(
    skb: Skb,
    own_mac: impl FnOnce(Mac) -> Mac,
    kind: (u8, u8),
    router: Option<[u32; 4]>,
    why: Drop,
) -> Result<i32, Drop> {
    error(skb, own_mac, (kind, 0), router, why)
}

/// As [`refuse`], with a value for the second word of the error.
#[inline(always)]
pub(crate) fn error(
    skb: Skb,
    own_mac: impl FnOnce(Mac) -> Mac,
    ((kind, code), value): ((u8, u8), u32),
    router: Option<[u32; 4]>,
    why: Drop,
) -> Result<i32, Drop> {
    let nothing = Ipv6Header {
        version_class_flow: 0,
        payload_len: 0,
        next_header: 0,
        hop_limit: 0,
        source: [0; 4],
        destination: [0; 4],
    };
    let mut quoted = Quoted { header: nothing, upper: [0; 2] };
    if !skb.load(ETH_LEN, &mut quoted) {
        return Err(drop_here!(INVALID_PACKET_DROPPED));
    }
    if quoted.header.next_header == ICMPV6 && u32::from_be(quoted.upper[0]) >> 24 < FIRST_INFORMATIONAL {
        return Err(why);
    }
    let source = match router {
        Some(router) => router,
        None => quoted.header.destination,
    };
    let message = ErrorMessage { kind, code, checksum: 0, value: value.to_be(), quoted };
    reply(skb, own_mac, source, ERROR_HOPS, message, |message, checksum| message.checksum = checksum)
}

/// Turns a pod's packet into an ICMPv6 message to its sender and sends it back to the pod.
#[inline(always)]
fn reply<T>(
    skb: Skb,
    own_mac: impl FnOnce(Mac) -> Mac,
    from: [u32; 4],
    hops: u8,
    mut message: T,
    set_checksum: impl FnOnce(&mut T, u16),
) -> Result<i32, Drop> {
    let len = size_of::<T>() as u32;
    if !skb.resize(ICMP_OFFSET as u32 + len) {
        return Err(drop_here!(ERROR_WRITING_TO_PACKET));
    }
    let Some(header) = V6::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; the Ethernet header precedes it, and nothing moves the packet in between.
    let asker = unsafe {
        let asker = (*header).source;
        (*header).payload_len = (len as u16).to_be();
        (*header).next_header = ICMPV6;
        (*header).hop_limit = hops;
        (*header).source = from;
        (*header).destination = asker;
        let eth = header.byte_sub(ETH_LEN).cast::<EthHeader>();
        let own = own_mac((*eth).destination);
        (*eth).destination = (*eth).source;
        (*eth).source = own;
        asker
    };
    let pseudo = PseudoHeader {
        source: from,
        destination: asker,
        len: len.to_be(),
        next_header: u32::from(ICMPV6).to_be(),
    };
    let sum = sum_of(&message, sum_of(&pseudo, 0));
    set_checksum(&mut message, !fold(sum));
    if !skb.store(ICMP_OFFSET, &message) {
        return Err(drop_here!(ERROR_WRITING_TO_PACKET));
    }
    Ok(skb.redirect(skb.ifindex()))
}

/// Returns the sum of a value's words and `seed`, not folded.
#[inline(always)]
pub(crate) fn sum_of<T>(value: &T, seed: u32) -> u32 {
    // SAFETY: the value outlives the call; its length is a multiple of four.
    unsafe {
        bpf_csum_diff(
            core::ptr::null_mut(),
            0,
            (&raw const *value).cast_mut().cast(),
            size_of::<T>() as u32,
            seed,
        ) as u32
    }
}
