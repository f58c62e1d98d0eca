//! Programs of cilium_host and cilium_net, between the host's stack and pods; the host firewall ([`firewall`]).

pub(crate) mod firewall;

use crate::endpoint;
use crate::endpoint::deliver::{self, Origin};
use crate::endpoint::ipcache;
use crate::endpoint::proxy;
use crate::monitor::drop::{Drop, Parties, dropped};
use crate::monitor::trace::{self, Trace};
use crate::overlay::encapsulate::encapsulate;
use crate::packet::family::Family;
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{ETH_IPV4, ETH_IPV6, ETH_LEN, PASS, Skb};
use datapath_abi::mark::{self, cb, delivery};
use datapath_abi::trace::{FROM_HOST, FROM_PROXY, TO_OVERLAY, TO_STACK, reason};
use datapath_abi::{direction, file, identity, lxc_flag, slot};

const FILE: u8 = file::BPF_HOST;

/// Handles packets that the host routes to pods by cilium_host.
#[inline(always)]
pub(crate) fn from_host(skb: Skb) -> i32 {
    let carried = skb.mark();
    let (point, label) = match carried & mark::MAGIC_MASK {
        mark::PROXY_INGRESS | mark::PROXY_EGRESS => (FROM_PROXY, mark::identity(carried)),
        mark::IDENTITY => (FROM_HOST, mark::identity(carried)),
        _ if is_of_host(skb, carried) => (FROM_HOST, identity::HOST),
        _ => (FROM_HOST, identity::WORLD),
    };
    skb.clear_cb();
    // The mark has been evaluated: clear it, so that rules of the stack do not match it again.
    skb.set_mark(0);
    // The next program resolves the sender in any case; only the event needs it here.
    let sender = if trace::wanted(point, 0) { ipcache::sender(skb, label, ETH_LEN) } else { label };
    trace!(skb, Trace { ifindex: skb.ingress_ifindex(), ..at_host(point, sender, identity::UNKNOWN) });
    skb.set_cb(cb::SRC_LABEL, label);
    skb.set_cb(cb::DELIVERY_FLAGS, from_proxy(carried));
    let checks = enabled!(host_firewall);
    let missed = match skb.protocol() {
        ETH_IPV4 if enabled!(enable_ipv4) => {
            skb.tail_call(if checks { slot::IPV4_HOST_EGRESS } else { slot::IPV4_FROM_HOST });
            drop_here!(MISSED_TAIL_CALL)
        }
        ETH_IPV6 if enabled!(enable_ipv6) => {
            skb.tail_call(if checks { slot::IPV6_HOST_EGRESS } else { slot::IPV6_FROM_HOST });
            drop_here!(MISSED_TAIL_CALL)
        }
        _ => return PASS,
    };
    drop_incoming(skb, missed, sender)
}

/// Returns the flag in [`delivery`] of a proxy's packet by its mark; 0 for other packets.
#[inline(always)]
pub(crate) fn from_proxy(carried: u32) -> u32 {
    match carried & mark::MAGIC_MASK {
        mark::PROXY_INGRESS => delivery::FROM_INGRESS_PROXY,
        mark::PROXY_EGRESS => delivery::FROM_EGRESS_PROXY,
        _ => 0,
    }
}

/// True for a packet that this host generated: it has the mark of the agent's rule in netfilter's output hook and no
/// input interface. The latter is not sufficient: Linux fragments forwarded IPv6 packets into new ones without that
/// interface, which keep the mark. The mark alone is not, either: IPVS and TEE pass forwarded packets to that hook.
#[inline(always)]
pub(crate) fn is_of_host(skb: Skb, carried: u32) -> bool {
    carried & mark::MAGIC_MASK == mark::HOST && skb.ingress_ifindex() == 0
}

/// Delivers an IP packet of the host's stack to a pod. A packet without a receiver is dropped: it would re-enter the
/// stack, be routed here again and loop until its hop limit is exceeded.
#[inline(always)]
pub(crate) fn to_pods<F: Family>(skb: Skb) -> i32 {
    let (label, proxy) = (skb.cb(cb::SRC_LABEL), skb.cb(cb::DELIVERY_FLAGS));
    match forward::<F>(skb, label, proxy) {
        Ok(verdict) => verdict,
        Err(why) => drop_incoming(skb, why, ipcache::sender_of::<F>(skb, label, ETH_LEN)),
    }
}

#[inline(always)]
fn forward<F: Family>(skb: Skb, label: u32, proxy: u32) -> Result<i32, Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: checked by `header`; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    let destination = F::destination(ip);
    let label = if ipcache::is_world(label) { F::world() } else { label };
    let src_label = ipcache::resolve_source::<F>(label, F::source(ip));
    if let Some(pod) = endpoint::local::<F>(destination) {
        if pod.flags & lxc_flag::HOST_DELIVERY != 0 {
            return Ok(PASS);
        }
        let origin = if proxy != 0 { Origin::Proxy(proxy) } else { Origin::Host };
        return deliver::to_pod::<F>(skb, header, pod, src_label, origin);
    }
    let row = ipcache::lookup::<F>(destination);
    if let Some(info) = row
        && ipcache::is_tunnelled(info.flags, false)
    {
        let at = at_host(TO_OVERLAY, src_label, info.sec_identity);
        return encapsulate(skb, info, at);
    }
    if proxy != 0 {
        // The packet enters the stack again, where a rule would take it for one to the proxy's socket.
        skb.set_mark(mark::SKIP_TPROXY);
        return Ok(PASS);
    }
    match row {
        Some(info) if !ipcache::is_world(info.sec_identity) => {
            if enabled!(identity_mark) {
                skb.set_mark(mark::with_identity(mark::IDENTITY, src_label));
            }
            Ok(PASS)
        }
        _ => Err(drop_here!(STALE_OR_UNROUTABLE_IP)),
    }
}

/// Handles packets into the host's stack, at ingress of cilium_net or cilium_host.
#[inline(always)]
pub(crate) fn to_host(skb: Skb) -> i32 {
    let carried = skb.mark();
    if carried & mark::MAGIC_MASK == mark::TO_PROXY {
        // It has the MAC address of the pod that it was on its way to.
        skb.set_type_host();
        let assigned = match skb.protocol() {
            ETH_IPV4 if enabled!(enable_ipv4) => proxy::assign::<V4>(skb),
            ETH_IPV6 if enabled!(enable_ipv6) => proxy::assign::<V6>(skb),
            _ => Ok(()),
        };
        return match assigned {
            Ok(()) => PASS,
            Err(why) => drop_incoming(skb, why, identity::UNKNOWN),
        };
    }
    let label = match carried & mark::MAGIC_MASK {
        mark::IDENTITY => mark::identity(carried),
        mark::HOST => identity::HOST,
        _ => identity::UNKNOWN,
    };
    if enabled!(host_firewall) {
        // The checks report the packet.
        return match skb.protocol() {
            ETH_IPV4 if enabled!(enable_ipv4) => firewall::admit::<V4>(skb, label),
            ETH_IPV6 if enabled!(enable_ipv6) => firewall::admit::<V6>(skb, label),
            other => firewall::other_protocol(skb, other, direction::INGRESS),
        };
    }
    let at = at_host(TO_STACK, label, identity::HOST);
    trace!(skb, Trace { ifindex: node!(host_ifindex), ..at });
    PASS
}

/// Drops a packet on its way to a pod.
#[inline(always)]
pub(crate) fn drop_incoming(skb: Skb, why: Drop, src_label: u32) -> i32 {
    let parties = Parties { endpoint: node!(host_endpoint_id), src_label, ..Parties::default() };
    dropped(skb, why, direction::INGRESS, parties)
}

/// Returns a trace of a packet at a point of the host endpoint.
#[inline(always)]
pub(crate) fn at_host(point: u8, src_label: u32, dst_label: u32) -> Trace {
    let endpoint = node!(host_endpoint_id);
    let (reason, monitor) = (reason::UNKNOWN, true);
    let (flags, dst_id, ifindex, l3_device, orig_ip) = (0, 0, 0, false, [0; 4]);
    Trace {
        point,
        reason,
        monitor,
        endpoint,
        flags,
        src_label,
        dst_label,
        dst_id,
        ifindex,
        l3_device,
        orig_ip,
    }
}
