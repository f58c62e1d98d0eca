//! Pods: what they send, and the guard in front of them.

use crate::deliver::{self, Origin};
use crate::drop::{Drop, Parties, dropped};
use crate::endpoint;
use crate::family::Family;
use crate::ipcache;
use crate::ipv4::V4;
use crate::ipv6::V6;
use crate::ndp;
use crate::skb::{ETH_ARP, ETH_IPV4, ETH_IPV6, ETH_TYPE_MIN, PASS, Skb};
use crate::trace::{self, Trace};
use datapath_abi::drop::TTL_EXCEEDED;
use datapath_abi::mark::{self, cb, delivery};
use datapath_abi::trace::{FROM_LXC, FROM_PROXY, FROM_STACK, TO_LXC, TO_STACK, reason};
use datapath_abi::{EndpointConfig, FAMILY_V6, direction, ep_flag, file, identity, lxc_flag, slot};

const FILE: u8 = file::BPF_LXC;

/// Everything that a pod sends: one program for each kind of packet.
#[inline(always)]
pub(crate) fn from_container(skb: Skb) -> i32 {
    skb.clear_cb();
    skb.set_mark(0);
    skb.clear_queue_mapping();
    if trace::wanted(FROM_LXC, 0)
        && let Some(me) = endpoint::by_ifindex(skb.ifindex())
    {
        trace!(skb, at_endpoint(FROM_LXC, me, me.identity, identity::UNKNOWN));
    }
    let why = match skb.protocol() {
        ETH_IPV4 if enabled!(enable_ipv4) => {
            skb.tail_call(slot::IPV4_FROM_LXC);
            drop_here!(MISSED_TAIL_CALL)
        }
        ETH_IPV6 if enabled!(enable_ipv6) => {
            skb.tail_call(slot::IPV6_FROM_LXC);
            drop_here!(MISSED_TAIL_CALL)
        }
        ETH_ARP if enabled!(enable_ipv4) => {
            if !enabled!(arp_responder) {
                return PASS;
            }
            skb.tail_call(slot::ARP);
            drop_here!(MISSED_TAIL_CALL)
        }
        length if u16::from_be(length) < ETH_TYPE_MIN => drop_here!(UNSUPPORTED_L2_PROTOCOL),
        _ => drop_here!(UNSUPPORTED_L3_PROTOCOL),
    };
    drop_sent(skb, why, endpoint::by_ifindex(skb.ifindex()))
}

/// Drops a packet that a pod sent.
#[inline(always)]
pub(crate) fn drop_sent(skb: Skb, why: Drop, me: Option<&EndpointConfig>) -> i32 {
    let parties = match me {
        Some(me) => {
            Parties { endpoint: me.id, flags: me.flags, src_label: me.identity, ..Parties::default() }
        }
        None => Parties::default(),
    };
    dropped(skb, why, direction::EGRESS, parties)
}

/// An IP packet of a pod: to another pod, to the host or out by the host's routes.
#[inline(always)]
pub(crate) fn from_lxc<F: Family>(skb: Skb) -> i32 {
    let Some(me) = endpoint::by_ifindex(skb.ifindex()) else {
        return drop_sent(skb, drop_here!(EP_NOT_READY), None);
    };
    match forward::<F>(skb, me) {
        Ok(verdict) => verdict,
        Err(why) => {
            if F::NUMBER == FAMILY_V6 && why.reason() == TTL_EXCEEDED {
                // Answered there; back here only if that program is missing.
                skb.tail_call(slot::ICMP6_TIME_EXCEEDED);
            }
            let dst_label = match F::header(skb) {
                // SAFETY: checked by `header`.
                Some(header) => ipcache::identity_of::<F>(F::destination(unsafe { &*header })),
                None => identity::UNKNOWN,
            };
            let (endpoint, flags, src_label) = (me.id, me.flags, me.identity);
            let parties = Parties { endpoint, flags, src_label, dst_label, dst_id: 0 };
            dropped(skb, why, direction::EGRESS, parties)
        }
    }
}

#[inline(always)]
fn forward<F: Family>(skb: Skb, me: &EndpointConfig) -> Result<i32, Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: checked by `header`; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    if F::is_neighbour_discovery(skb, ip) {
        return ndp::dispatch(skb);
    }
    if enabled!(source_ip_verification)
        && me.flags & ep_flag::SOURCE_CHECK != 0
        && !F::same(F::source(ip), F::own(me))
    {
        return Err(drop_here!(INVALID_SOURCE_IP));
    }
    let destination = F::destination(ip);
    // With endpoint routes the host's routes know each pod, unless packets skip the host's stack.
    if (!enabled!(endpoint_routes) || enabled!(redirect_peer))
        && let Some(pod) = endpoint::local::<F>(destination)
        && pod.flags & lxc_flag::HOST_DELIVERY == 0
    {
        return deliver::to_pod::<F>(skb, header, pod, me.identity, Origin::Pod);
    }
    deliver::to_stack::<F>(skb, header, me.node_mac, me.identity)?;
    let dst_label = if trace::wanted(TO_STACK, me.flags) {
        ipcache::identity_of::<F>(destination)
    } else {
        identity::UNKNOWN
    };
    trace!(skb, at_endpoint(TO_STACK, me, me.identity, dst_label));
    Ok(PASS)
}

/// The guard of every pod: called with the sender's identity in `cb[0]`, and in `cb[1]` how to deliver and to whom.
#[inline(always)]
pub(crate) fn policy(skb: Skb) -> i32 {
    let (src_label, call) = (skb.cb(cb::SRC_LABEL), skb.cb(cb::DELIVERY_FLAGS));
    let me = match call >> delivery::ENDPOINT_SHIFT {
        // A caller of another origin names the endpoint only by the slot it jumped to.
        0 => by_destination(skb),
        id => endpoint::by_id(id),
    };
    let Some(me) = me else {
        let parties = Parties { src_label, dst_id: call >> delivery::ENDPOINT_SHIFT, ..Parties::default() };
        return dropped(skb, drop_here!(EP_NOT_READY), direction::INGRESS, parties);
    };
    let at = at_endpoint(TO_LXC, me, src_label, me.identity);
    trace!(skb, Trace { dst_id: me.id, ifindex: me.ifindex, ..at });
    if call & delivery::USE_REDIRECT_PEER != 0 {
        skb.redirect_peer(me.ifindex)
    } else if call & delivery::REDIRECT != 0 {
        skb.redirect(me.ifindex)
    } else {
        PASS
    }
}

#[inline(always)]
fn by_destination(skb: Skb) -> Option<&'static EndpointConfig> {
    let pod = match skb.protocol() {
        // SAFETY: checked by `header`.
        ETH_IPV4 => endpoint::local::<V4>(V4::destination(unsafe { &*V4::header(skb)? })),
        // SAFETY: checked by `header`.
        ETH_IPV6 => endpoint::local::<V6>(V6::destination(unsafe { &*V6::header(skb)? })),
        _ => None,
    };
    endpoint::by_id(u32::from(pod?.lxc_id))
}

/// What the stack sends to a pod, at the pod's interface.
#[inline(always)]
pub(crate) fn to_container(skb: Skb) -> i32 {
    match skb.protocol() {
        ETH_IPV4 if enabled!(enable_ipv4) => at_interface::<V4>(skb),
        ETH_IPV6 if enabled!(enable_ipv6) => at_interface::<V6>(skb),
        _ => PASS,
    }
}

#[inline(always)]
fn at_interface<F: Family>(skb: Skb) -> i32 {
    let carried = skb.mark();
    let (point, label) = match carried & mark::MAGIC_MASK {
        mark::PROXY_INGRESS | mark::PROXY_EGRESS => (FROM_PROXY, mark::identity(carried)),
        mark::IDENTITY => (FROM_STACK, mark::identity(carried)),
        mark::HOST => (FROM_STACK, identity::HOST),
        _ if skb.ingress_ifindex() == 0 => (FROM_STACK, identity::HOST),
        _ => (FROM_STACK, F::world()),
    };
    let Some(me) = endpoint::by_ifindex(skb.ifindex()) else {
        let parties = Parties { src_label: label, ..Parties::default() };
        return dropped(skb, drop_here!(EP_NOT_READY), direction::INGRESS, parties);
    };
    trace!(skb, at_endpoint(point, me, label, identity::UNKNOWN));
    let Some(header) = F::header(skb) else {
        let (endpoint, flags, dst_label) = (me.id, me.flags, me.identity);
        let parties = Parties { endpoint, flags, src_label: label, dst_label, dst_id: me.id };
        return dropped(skb, drop_here!(INVALID_PACKET_DROPPED), direction::INGRESS, parties);
    };
    // SAFETY: checked by `header`.
    let src_label = ipcache::resolve_source::<F>(label, F::source(unsafe { &*header }));
    let at = at_endpoint(TO_LXC, me, src_label, me.identity);
    trace!(skb, Trace { dst_id: me.id, ifindex: me.ifindex, ..at });
    PASS
}

#[inline(always)]
fn at_endpoint(point: u8, me: &EndpointConfig, src_label: u32, dst_label: u32) -> Trace {
    let (endpoint, flags) = (me.id, me.flags);
    Trace { point, reason: reason::UNKNOWN, endpoint, flags, src_label, dst_label, dst_id: 0, ifindex: 0 }
}
