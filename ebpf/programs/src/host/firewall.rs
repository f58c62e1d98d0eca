//! The host firewall (`enable-host-firewall`): policies of nodes, enforced on packets from and to this host.
//!
//! A packet to an address of the host is checked where it goes up to the host's stack: at a device, at `cilium_host`, or
//! at the interface of the pod that sent it. A packet of the host is checked where it leaves: at a device, at
//! `cilium_host`, or with endpoint routes at the interface of the pod. The host's connections have entries as those of
//! pods, so replies and ICMP errors pass. Forwarded packets, ARP and neighbour discovery are not subject to it.
//! Uses `conntrack`, `endpoint`, `monitor`, `packet`, `policy`, and `device` and `nodeport` for what comes after.

use crate::conntrack::{self, Direction, State, Status};
use crate::device;
use crate::endpoint;
use crate::endpoint::deliver;
use crate::endpoint::ipcache;
use crate::host::at_host;
use crate::monitor::drop::{Drop, Parties, dropped};
use crate::monitor::trace::Trace;
use crate::nodeport::NodePort;
use crate::packet::family::Family;
use crate::packet::flow::{self, UNCOUNTED};
use crate::packet::skb::{ETH_ARP, ETH_TYPE_MIN, PASS, Skb};
use crate::policy::{self, Way};
use crate::snat::Snat;
use datapath_abi::mark::{self, cb, delivery};
use datapath_abi::trace::{TO_PROXY, TO_STACK};
use datapath_abi::{EndpointConfig, FAMILY_V6, direction, file, identity};

const FILE: u8 = file::HOST_FIREWALL;

/// The flags in `cb[1]` of a proxy's packets, at `cilium_host` and at the interfaces of pods.
const FROM_PROXY: u32 = delivery::FROM_INGRESS_PROXY | delivery::FROM_EGRESS_PROXY;

/// Passes an IP packet to the host's stack if it may reach the host, or is not for it. `label` is the identity of the
/// sender; UNKNOWN leaves it to the source address.
#[inline(always)]
pub(crate) fn admit<F: Family>(skb: Skb, label: u32) -> i32 {
    if !enabled!(host_firewall) {
        return PASS;
    }
    skb.set_cb(cb::SRC_LABEL, label);
    skb.tail_call(F::HOST_INGRESS_SLOT);
    drop_at_host(skb, drop_here!(MISSED_TAIL_CALL), direction::INGRESS, label, identity::HOST)
}

/// Checks a packet of the host that leaves, before the program that sends it. `label` is the sender's identity by the
/// packet's mark, UNKNOWN without one.
#[inline(always)]
pub(crate) fn dismiss<F: Family>(skb: Skb, label: u32) -> i32 {
    skb.set_cb(cb::SRC_LABEL, label);
    skb.tail_call(F::HOST_EGRESS_SLOT);
    drop_at_host(skb, drop_here!(MISSED_TAIL_CALL), direction::EGRESS, label, identity::UNKNOWN)
}

/// Decides about a packet other than IP of an enabled family, between the host and a device: only ARP passes.
#[inline(always)]
pub(crate) fn other_protocol(skb: Skb, protocol: u16, direction: u8) -> i32 {
    if !enabled!(host_firewall) || protocol == ETH_ARP {
        return PASS;
    }
    let why = if u16::from_be(protocol) < ETH_TYPE_MIN {
        drop_here!(UNSUPPORTED_L2_PROTOCOL)
    } else {
        drop_here!(UNSUPPORTED_L3_PROTOCOL)
    };
    drop_at_host(skb, why, direction, identity::UNKNOWN, identity::UNKNOWN)
}

/// Checks a packet to the host's stack: `cb[0]` has the sender's identity.
#[inline(always)]
pub(crate) fn ingress<F: Family>(skb: Skb) -> i32 {
    let label = skb.cb(cb::SRC_LABEL);
    let src_label = sender::<F>(skb, label);
    if let Err(why) = enter::<F>(skb, src_label) {
        return drop_at_host(skb, why.any(skb), direction::INGRESS, src_label, identity::HOST);
    }
    let ifindex = skb.ifindex();
    if ifindex == node!(host_ifindex) || ifindex == node!(net_ifindex) {
        let at = at_host(TO_STACK, label, identity::HOST);
        trace!(skb, Trace { ifindex: node!(host_ifindex), ..at });
    }
    PASS
}

/// Returns the identity of the sender of a packet to the host.
#[inline(always)]
fn sender<F: Family>(skb: Skb, label: u32) -> u32 {
    let label = if label == identity::UNKNOWN || ipcache::is_world(label) { F::world() } else { label };
    match F::header(skb) {
        // SAFETY: `header` checked the bounds; nothing writes the packet while this borrow is used.
        Some(header) => ipcache::resolve_source::<F>(label, F::source(unsafe { &*header })),
        None => label,
    }
}

#[inline(always)]
fn enter<F: Family>(skb: Skb, src_label: u32) -> Result<(), Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: checked by `header`; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    if ipcache::identity_of::<F>(F::destination(ip)) != identity::HOST {
        return Ok(());
    }
    let Some(me) = endpoint::host() else { return Ok(()) };
    let flow = flow::of::<F>(skb, ip, UNCOUNTED)?;
    if F::NUMBER == FAMILY_V6 && flow.protocol() == F::ICMP && !is_for_policy::<F>(flow.icmp()[0])? {
        return Ok(());
    }
    let now = conntrack::now();
    let found = conntrack::lookup::<F>(skb, &flow, Direction::Ingress, false, now);
    if matches!(found.status(), Status::New | Status::Established) {
        policy::check::<F>(skb, me, src_label, &flow, found.status(), Way::Ingress)?;
        if found.status() == Status::New {
            let state = State { src_label, ..State::default() };
            conntrack::create::<F>(skb, &flow, Direction::Ingress, &state, now)?;
        }
    }
    Ok(())
}

/// Checks a packet that the host sends, then continues at the hook, or leads it to a proxy: `cb[0]` has the sender's
/// identity by the mark.
#[inline(always)]
pub(crate) fn egress<F: NodePort + Snat>(skb: Skb) -> i32 {
    let label = skb.cb(cb::SRC_LABEL);
    if let Err(why) = leave::<F>(skb, label) {
        let dst_label = receiver::<F>(skb);
        return drop_at_host(skb, why.any(skb), direction::EGRESS, identity::HOST, dst_label);
    }
    if deliver::is_to_proxy(skb) {
        let port = u32::from(u16::from_be((skb.mark() >> 16) as u16));
        trace!(skb, Trace { dst_id: port, ..at_host(TO_PROXY, identity::HOST, identity::UNKNOWN) });
        // The rules that lead it to the proxy are in the stack's input, and it is on its way out.
        return skb.redirect_ingress(node!(net_ifindex));
    }
    if skb.ifindex() == node!(host_ifindex) {
        skb.tail_call(F::FROM_HOST_SLOT);
    } else if enabled!(endpoint_routes) && skb.cb(cb::DELIVERY_FLAGS) >> delivery::ENDPOINT_SHIFT != 0 {
        skb.tail_call(F::POLICY_SLOT);
    } else {
        return device::send(skb);
    }
    drop_at_host(skb, drop_here!(MISSED_TAIL_CALL), direction::EGRESS, label, identity::UNKNOWN)
}

#[inline(always)]
fn leave<F: Family>(skb: Skb, label: u32) -> Result<(), Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: checked by `header`; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    if label != identity::HOST && ipcache::identity_of::<F>(F::source(ip)) != identity::HOST {
        return Ok(());
    }
    let Some(me) = endpoint::host() else { return Ok(()) };
    let flow = flow::of::<F>(skb, ip, UNCOUNTED)?;
    if F::NUMBER == FAMILY_V6 && flow.protocol() == F::ICMP && !is_for_policy::<F>(flow.icmp()[0])? {
        return Ok(());
    }
    let now = conntrack::now();
    let found = conntrack::lookup::<F>(skb, &flow, Direction::Egress, false, now);
    if matches!(found.status(), Status::New | Status::Established) {
        // At `cilium_host` packets without a mark are the world's by then.
        let is_unmarked =
            label == identity::UNKNOWN || skb.ifindex() == node!(host_ifindex) && ipcache::is_world(label);
        // A proxy has the identity of its client, which may be the host: policy would lead its packets to it again.
        let is_of_proxy = skb.cb(cb::DELIVERY_FLAGS) & FROM_PROXY != 0;
        // A pod's packet that rules of iptables gave an address of the host is subject to the pod's policy. It has an
        // entry, so that the replies pass.
        if !is_of_proxy && (label == identity::HOST || is_unmarked) {
            let dst_label = ipcache::identity_of::<F>(flow.destination);
            policy::check::<F>(skb, me, dst_label, &flow, found.status(), Way::Egress)?;
        }
        if found.status() == Status::New {
            let state = State { src_label: identity::HOST, ..State::default() };
            conntrack::create::<F>(skb, &flow, Direction::Egress, &state, now)?;
        }
    }
    Ok(())
}

/// Whether policy decides about an ICMPv6 message of the host, as for echoes. Other messages pass or are dropped by
/// RFC 4890, as in Cilium.
#[inline(always)]
fn is_for_policy<F: Family>(kind: u8) -> Result<bool, Drop> {
    match kind {
        kind if kind == F::ECHO_REQUEST || kind == F::ECHO_REPLY => Ok(true),
        // Errors; multicast listeners, routers and neighbours; inverse neighbours, listeners (version 2); secure
        // neighbours, multicast routers.
        1..=4 | 130..=136 | 141..=143 | 148..=149 | 151..=153 => Ok(false),
        _ => Err(drop_here!(FORBIDDEN_ICMPV6_MESSAGE)),
    }
}

/// Returns the identity of the receiver of a packet, for a drop.
#[inline(always)]
fn receiver<F: Family>(skb: Skb) -> u32 {
    match F::header(skb) {
        // SAFETY: `header` checked the bounds; nothing writes the packet while this borrow is used.
        Some(header) => ipcache::identity_of::<F>(F::destination(unsafe { &*header })),
        None => identity::UNKNOWN,
    }
}

/// Returns the sender's identity as the mark of a packet that leaves has it; UNKNOWN without one.
#[inline(always)]
pub(crate) fn marked(skb: Skb, carried: u32) -> u32 {
    match carried & mark::MAGIC_MASK {
        mark::IDENTITY | mark::PROXY_INGRESS | mark::PROXY_EGRESS => match mark::identity(carried) {
            // The marks of other senders have an identity; this one only says that it is not the host's own packet.
            identity::UNKNOWN | identity::HOST => identity::WORLD,
            label => label,
        },
        _ if super::is_of_host(skb, carried) => identity::HOST,
        _ => identity::UNKNOWN,
    }
}

/// Drops a packet from or to the host.
#[inline(always)]
fn drop_at_host(skb: Skb, why: Drop, direction: u8, src_label: u32, dst_label: u32) -> i32 {
    let flags = match endpoint::host() {
        Some(EndpointConfig { flags, .. }) => *flags,
        None => 0,
    };
    let endpoint = node!(host_endpoint_id);
    let dst_id = if direction == direction::INGRESS { endpoint } else { 0 };
    dropped(skb, why, direction, Parties { endpoint, flags, src_label, dst_label, dst_id })
}
