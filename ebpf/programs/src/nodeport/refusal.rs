//! Packets of devices and of the tunnel that are answered with ICMP: "port unreachable" for services without backends,
//! "time exceeded" for packets that would leave to a backend of another node, or to its client, with an exhausted hop
//! limit.

use crate::endpoint::ipcache;
use crate::host::{at_host, drop_incoming};
use crate::monitor::drop::Drop;
use crate::monitor::trace::Trace;
use crate::nodeport::{NodePort, way};
use crate::overlay::encapsulate::encapsulate;
use crate::packet::family::Family;
use crate::packet::headers::{Ipv4Header, Ipv6Header};
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{ETH_LEN, Skb};
use crate::pod::{ndp, no_service};
use crate::snat::{Snat, TRANSLATED, UNTRANSLATED, direct_routing_address, quote};
use datapath_abi::trace::{TO_OVERLAY, reason};
use datapath_abi::{file, identity, mark};

const FILE: u8 = file::NODEPORT;

/// The word of the context that has the reason of a refusal.
const REASON: usize = 3;
/// The service has no backend.
pub(crate) const NO_BACKEND: u32 = 0;
/// The hop limit of a request, as the client has sent it, is exhausted.
pub(crate) const REQUEST: u32 = 1;
/// That of the reply of another node's backend, with the client as its destination again.
pub(crate) const REPLY: u32 = 2;

/// ICMP type and code of "time exceeded in transit" (RFC 792).
const TIME_EXCEEDED: [u8; 2] = [11, 0];

/// Passes a packet to the program that answers it. Returns if that program is missing.
#[inline(always)]
pub(crate) fn hand_over<F: NodePort>(skb: Skb, reason: u32) {
    skb.set_cb(REASON, reason);
    skb.tail_call(F::REFUSAL_SLOT);
}

/// Answers a packet, a request or a reply, if its hop limit does not suffice for another hop, and returns only if it does
/// or has no answer.
#[inline(always)]
pub(crate) fn check_hops<F: NodePort>(skb: Skb, reason: u32) -> Result<(), Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    if F::hops(unsafe { &*header }) > 1 {
        return Ok(());
    }
    hand_over::<F>(skb, reason);
    Err(drop_here!(TTL_EXCEEDED))
}

/// Refuses an IPv4 packet that a device has received.
#[inline(always)]
pub(crate) fn refuse_ipv4(skb: Skb) -> i32 {
    skb.set_mark(mark::SNAT_DONE);
    let answered = match skb.cb(REASON) {
        NO_BACKEND => no_service::refuse(skb, |own| own),
        reason => exceeded_ipv4(skb, reason),
    };
    answered
        .and_then(|verdict| back::<V4>(skb, verdict))
        .unwrap_or_else(|why| drop_incoming(skb, why, ipcache::sender_of::<V4>(skb, V4::world(), ETH_LEN)))
}

/// Refuses an IPv6 packet that a device has received.
#[inline(always)]
pub(crate) fn refuse_ipv6(skb: Skb) -> i32 {
    skb.set_mark(mark::SNAT_DONE);
    let answered = match skb.cb(REASON) {
        NO_BACKEND => no_service::refuse_v6(skb, |own| own),
        reason => exceeded_ipv6(skb, reason),
    };
    answered
        .and_then(|verdict| back::<V6>(skb, verdict))
        .unwrap_or_else(|why| drop_incoming(skb, why, ipcache::sender_of::<V6>(skb, V6::world(), ETH_LEN)))
}

#[inline(always)]
fn exceeded_ipv4(skb: Skb, reason: u32) -> Result<i32, Drop> {
    let (why, node) = (drop_here!(TTL_EXCEEDED), router::<V4>(skb));
    if V4::is_unspecified(node) {
        return Err(why);
    }
    let verdict = no_service::error(skb, |own| own, (TIME_EXCEEDED, 0), Some(node), why)?;
    translate::<V4>(skb, size_of::<Ipv4Header>(), reason, verdict)
}

#[inline(always)]
fn exceeded_ipv6(skb: Skb, reason: u32) -> Result<i32, Drop> {
    let (why, node) = (drop_here!(TTL_EXCEEDED), router::<V6>(skb));
    if V6::is_unspecified(node) {
        return Err(why);
    }
    let verdict = ndp::refuse(skb, |own| own, (ndp::TIME_EXCEEDED, 0), Some(node), why)?;
    translate::<V6>(skb, size_of::<Ipv6Header>(), reason, verdict)
}

/// Returns the node's address as a router, in the network that a packet came from.
#[inline(always)]
fn router<F: Snat>(skb: Skb) -> F::Address {
    if is_at_tunnel(skb) { F::router() } else { direct_routing_address::<F>() }
}

#[inline(always)]
fn is_at_tunnel(skb: Skb) -> bool {
    enabled!(tunnel) && skb.ifindex() == node!(tunnel_ifindex)
}

/// Translates an error about a reply, so that it quotes the packet that the backend has sent: to this node.
#[inline(always)]
fn translate<F: Snat>(skb: Skb, header_len: usize, reason: u32, verdict: i32) -> Result<i32, Drop> {
    if reason != REPLY {
        return Ok(verdict);
    }
    match skb.forget(quote::translate::<F>(skb.raw(), (ETH_LEN + header_len) as u64, true)) {
        TRANSLATED => Ok(verdict),
        UNTRANSLATED => Err(drop_here!(TTL_EXCEEDED)),
        why => Err(Drop::unpacked(why)),
    }
}

/// Returns the verdict of an answer. One to the tunnel needs a key: the device does not send a packet by the key that it
/// has received it with.
#[inline(always)]
fn back<F: NodePort>(skb: Skb, verdict: i32) -> Result<i32, Drop> {
    if !is_at_tunnel(skb) {
        return Ok(verdict);
    }
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    let Some(info) = way::behind_tunnel::<F>(F::destination(unsafe { &*header })) else {
        return Err(drop_here!(NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT));
    };
    let at = at_host(TO_OVERLAY, identity::REMOTE_NODE, info.sec_identity);
    encapsulate(skb, info, Trace { reason: reason::POLICY, ..at })
}
