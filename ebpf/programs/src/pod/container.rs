//! Pods: packets that they send, and policy and delivery of packets to them.

use crate::conntrack::{self, Direction, Found, State, Status};
use crate::endpoint;
use crate::endpoint::deliver::{self, Origin};
use crate::endpoint::ipcache;
use crate::endpoint::proxy;
use crate::endpoint::subnet;
use crate::host::{firewall, from_proxy, is_of_host};
use crate::lb::pods::{self, Service};
use crate::lb::{self, Services};
use crate::monitor::drop::{Drop, Parties, dropped};
use crate::monitor::trace::{self, Trace};
use crate::nat46x64;
use crate::nodeport::{self, NodePort};
use crate::overlay::encapsulate::encapsulate;
use crate::packet::family::Family;
use crate::packet::flow::{self, UDP};
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{ETH_ARP, ETH_IPV4, ETH_IPV6, ETH_LEN, ETH_TYPE_MIN, PASS, Skb};
use crate::pod::{bypass, ndp};
use crate::policy::{self, Way};
use datapath_abi::drop::{POLICY_DENIED, POLICY_DENY, SERVICE_BACKEND_NOT_FOUND, TTL_EXCEEDED};
use datapath_abi::mark::{self, cb, delivery};
use datapath_abi::trace::{
    FROM_LXC, FROM_PROXY, FROM_STACK, TO_LXC, TO_NETWORK, TO_OVERLAY, TO_PROXY, TO_STACK, reason,
};
use datapath_abi::{
    EndpointConfig, FAMILY_V4, FAMILY_V6, ct_flag, direction, ep_flag, file, identity, lxc_flag, slot,
};

const FILE: u8 = file::BPF_LXC;

/// Dispatches packets of a pod to the program for their protocol.
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

/// Handles an IP packet as it leaves a pod: validates the source, and translates a service to its backend.
#[inline(always)]
pub(crate) fn from_lxc<F: Services>(skb: Skb) -> i32 {
    let Some(me) = endpoint::by_ifindex(skb.ifindex()) else {
        return drop_sent(skb, drop_here!(EP_NOT_READY), None);
    };
    match admit::<F>(skb, me) {
        Ok(verdict) => verdict,
        Err(why) => {
            let why = why.any(skb);
            if why.reason() == SERVICE_BACKEND_NOT_FOUND && enabled!(empty_services_reject) {
                // The tail call does not return unless the program is missing.
                skb.tail_call(F::NO_SERVICE_SLOT);
            }
            drop_to_destination::<F>(skb, why, me)
        }
    }
}

/// Drops a packet that a pod sent, reporting the identity of its destination.
#[inline(always)]
fn drop_to_destination<F: Family>(skb: Skb, why: Drop, me: &EndpointConfig) -> i32 {
    let dst_label = match F::header(skb) {
        // SAFETY: `header` checked the bounds.
        Some(header) => ipcache::identity_of::<F>(F::destination(unsafe { &*header })),
        None => identity::UNKNOWN,
    };
    let (endpoint, flags, src_label) = (me.id, me.flags, me.identity);
    let parties = Parties { endpoint, flags, src_label, dst_label, dst_id: 0 };
    dropped(skb, why, direction::EGRESS, parties)
}

#[inline(always)]
fn admit<F: Services>(skb: Skb, me: &EndpointConfig) -> Result<i32, Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: checked by `header`; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    if F::is_neighbour_discovery(skb, ip)
        && F::is_from_link(ip)
        && let Some(result) = ndp::dispatch(skb, me)
    {
        return result;
    }
    if enabled!(source_ip_verification)
        && me.flags & ep_flag::SOURCE_CHECK != 0
        && !F::same(F::source(ip), F::own(me))
    {
        return Err(drop_here!(INVALID_SOURCE_IP));
    }
    if enabled!(per_packet_lb) {
        let mut flow = flow::of::<F>(skb, ip, direction::EGRESS)?;
        pods::translate::<F>(skb, &mut flow, conntrack::now())?.hand_over(skb);
    }
    skb.tail_call(F::FORWARD_SLOT);
    Err(drop_here!(MISSED_TAIL_CALL))
}

/// Forwards an IP packet of a pod after service translation: to a local pod, to the host, or by the host's routes.
#[inline(always)]
pub(crate) fn forward_from_lxc<F: NodePort>(skb: Skb) -> i32 {
    let Some(me) = endpoint::by_ifindex(skb.ifindex()) else {
        return drop_sent(skb, drop_here!(EP_NOT_READY), None);
    };
    let service = Service::of(skb);
    Service::NONE.hand_over(skb);
    let original = lb::surrogate::take(skb, service);
    match forward::<F>(skb, me, service, original) {
        Ok(verdict) => verdict,
        Err(why) => {
            let why = why.any(skb);
            if F::NUMBER == FAMILY_V6 && why.reason() == TTL_EXCEEDED {
                // The tail call does not return unless the program is missing.
                skb.tail_call(slot::ICMP6_TIME_EXCEEDED);
            }
            let verdict = drop_to_destination::<F>(skb, why, me);
            if enabled!(policy_deny_response) && matches!(why.reason(), POLICY_DENIED | POLICY_DENY) {
                // The drop is reported; the program only answers.
                skb.tail_call(F::POLICY_DENIED_SLOT);
            }
            verdict
        }
    }
}

#[inline(always)]
fn forward<F: NodePort>(
    skb: Skb,
    me: &EndpointConfig,
    service: Service,
    nat_address: [u32; 4],
) -> Result<i32, Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: checked by `header`; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    let destination = F::destination(ip);
    // The previous program has counted fragments.
    let counted = if enabled!(per_packet_lb) { flow::UNCOUNTED } else { direction::EGRESS };
    let flow = flow::of::<F>(skb, ip, counted)?;
    let now = conntrack::now();
    let found = conntrack::lookup::<F>(skb, &flow, Direction::Egress, service.is_some(), now);
    let receiver = ipcache::Receiver::of::<F>(skb, destination)
        .skipping_tunnel(subnet::is_same::<F>(flow.source, destination));
    let dst_label = receiver.label();
    if matches!(found.status(), Status::New | Status::Established) {
        let mut flags = if service.loopback { ct_flag::LB_LOOPBACK } else { 0 };
        // Policy does not apply between a pod and itself.
        if !service.loopback {
            // A pod could send as any identity.
            if enabled!(tunnel) && flow.protocol() == UDP && flow.dport == node!(tunnel_port) {
                return Err(drop_here!(ENCAPSULATION_TRAFFIC_IS_PROHIBITED));
            }
            if enabled!(per_packet_lb) && service.proxy_port != 0 {
                // The service's proxy applies policy: to the backend, which it chooses.
                deliver::to_proxy(skb, service.proxy_port);
            } else {
                policy::check::<F>(skb, me, dst_label, &flow, found.status(), Way::Egress)?;
            }
            if deliver::is_to_proxy(skb) {
                flags |= ct_flag::PROXY_REDIRECT;
            }
        }
        let state = State { src_label: me.identity, rev_nat: service.rev_nat, flags, nat_address };
        // The entry may be of an earlier connection through a service, or of a policy with or without a proxy: recreate
        // it with this packet's.
        if found.status() == Status::New
            || found.rev_nat() != state.rev_nat
            || (found.flags() ^ flags) & ct_flag::PROXY_REDIRECT != 0
        {
            conntrack::create::<F>(skb, &flow, Direction::Egress, &state, now)?;
        }
    } else if found.is_proxied() {
        // The connection came in by a proxy: its socket, which may have the client's address, gets the reply.
        deliver::to_proxy(skb, 0);
    }
    if deliver::is_to_proxy(skb) {
        trace!(skb, to_proxy(skb, of_connection(TO_PROXY, me, me.identity, identity::UNKNOWN, &found)));
        proxy::assign::<F>(skb)?;
        return Ok(PASS);
    }
    nodeport::reply::hand_over::<F>(
        skb,
        &found,
        of_connection(TO_NETWORK, me, me.identity, dst_label, &found),
    )?;
    if enabled!(nat46x64_gateway) && nat46x64::is_behind_gateway::<F>(destination) {
        return Err(nodeport::remote::hand_over::<F>(skb));
    }
    let header = if enabled!(nat46x64) && F::NUMBER == FAMILY_V4 {
        nat46x64::reply_of_pod(skb, found.status(), dst_label)?;
        let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
        header
    } else {
        header
    };
    // A pod's replies to itself go to its own address, not to the loopback address of services.
    let reply = matches!(found.status(), Status::Reply | Status::Related);
    let back = reply && found.flags() & ct_flag::LB_LOOPBACK != 0;
    let destination = if back { flow.source } else { destination };
    // With endpoint routes the host has a route to each pod, unless packets bypass the host's stack.
    if (!enabled!(endpoint_routes) || enabled!(redirect_peer))
        && let Some(pod) = endpoint::local::<F>(destination)
        && pod.flags & lxc_flag::HOST_DELIVERY == 0
    {
        return deliver::to_pod::<F>(skb, header, pod, me.identity, Origin::Pod);
    }
    if receiver.is_behind_tunnel(found.flags() & ct_flag::FROM_TUNNEL != 0)
        && let Some(info) = ipcache::lookup::<F>(destination)
    {
        let at = of_connection(TO_OVERLAY, me, me.identity, dst_label, &found);
        return encapsulate(skb, info, at);
    }
    deliver::to_stack(skb, me.identity);
    if enabled!(host_routing) && dst_label != identity::HOST {
        let result = skb.forget(bypass::leave::<F>(skb.raw()));
        if let Some((ifindex, verdict)) = bypass::sent(result) {
            let at = of_connection(TO_NETWORK, me, me.identity, dst_label, &found);
            trace!(skb, Trace { ifindex, ..at });
            return Ok(verdict);
        }
        if result != bypass::TO_STACK {
            return Err(Drop::unpacked(result));
        }
    }
    trace!(skb, of_connection(TO_STACK, me, me.identity, dst_label, &found));
    if enabled!(host_firewall) && dst_label == identity::HOST {
        return Ok(firewall::admit::<F>(skb, me.identity));
    }
    Ok(PASS)
}

/// Delivers to a pod for programs of other loaders, which select the endpoint only by the slot of the tail call.
/// `cb[0]` has the sender's identity, `cb[1]` the delivery flags.
#[inline(always)]
pub(crate) fn policy(skb: Skb) -> i32 {
    let (found, slot) = match skb.protocol() {
        ETH_IPV4 if enabled!(enable_ipv4) => (by_destination::<V4>(skb), V4::POLICY_SLOT),
        ETH_IPV6 if enabled!(enable_ipv6) => (by_destination::<V6>(skb), V6::POLICY_SLOT),
        _ => return drop_unknown(skb, drop_here!(UNSUPPORTED_L3_PROTOCOL)),
    };
    let call = skb.cb(cb::DELIVERY_FLAGS);
    if call >> delivery::ENDPOINT_SHIFT == 0 {
        let Some(me) = found else { return drop_unknown(skb, drop_here!(EP_NOT_READY)) };
        skb.set_cb(cb::DELIVERY_FLAGS, call | me.id << delivery::ENDPOINT_SHIFT);
    }
    skb.tail_call(slot);
    drop_unknown(skb, drop_here!(MISSED_TAIL_CALL))
}

/// Drops a packet to an unknown pod.
#[inline(always)]
fn drop_unknown(skb: Skb, why: Drop) -> i32 {
    let parties = Parties { src_label: skb.cb(cb::SRC_LABEL), ..Parties::default() };
    dropped(skb, why, direction::INGRESS, parties)
}

/// Applies ingress policy and delivers: `cb[0]` has the sender's identity, `cb[1]` delivery flags and endpoint id.
#[inline(always)]
pub(crate) fn policy_of<F: Services>(skb: Skb) -> i32 {
    let (src_label, call) = (skb.cb(cb::SRC_LABEL), skb.cb(cb::DELIVERY_FLAGS));
    let id = call >> delivery::ENDPOINT_SHIFT;
    let Some(me) = endpoint::by_id(id) else {
        let parties = Parties { src_label, dst_id: id, ..Parties::default() };
        return dropped(skb, drop_here!(EP_NOT_READY), direction::INGRESS, parties);
    };
    match enter::<F>(skb, me, src_label, call) {
        Err(why) => return drop_received(skb, why.any(skb), me, src_label),
        Ok(()) if deliver::is_to_proxy(skb) => return enter_proxy(skb, call),
        Ok(()) => {}
    }
    if call & delivery::USE_REDIRECT_PEER != 0 {
        skb.redirect_peer(me.ifindex)
    } else if call & delivery::REDIRECT != 0 {
        skb.redirect(me.ifindex)
    } else {
        PASS
    }
}

#[inline(always)]
fn by_destination<F: Family>(skb: Skb) -> Option<&'static EndpointConfig> {
    // SAFETY: `header` checked the bounds.
    let pod = endpoint::local::<F>(F::destination(unsafe { &*F::header(skb)? }));
    endpoint::by_id(u32::from(pod?.lxc_id))
}

/// Passes a packet to a pod that is marked for a proxy to the host's stack.
#[inline(always)]
fn enter_proxy(skb: Skb, call: u32) -> i32 {
    if call & (delivery::REDIRECT | delivery::USE_REDIRECT_PEER) == 0 {
        // The packet is leaving by the pod's interface.
        return skb.redirect_ingress(node!(net_ifindex));
    }
    if call & delivery::FROM_TUNNEL != 0 {
        skb.set_type_host();
    }
    PASS
}

/// Checks whether a packet may enter a pod. Marks it if it goes to a proxy instead.
#[inline(always)]
fn enter<F: Services>(skb: Skb, me: &EndpointConfig, src_label: u32, call: u32) -> Result<(), Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: checked by `header`; nothing is written while this borrow is used.
    let mut flow = flow::of::<F>(skb, unsafe { &*header }, direction::INGRESS)?;
    let orig_ip = F::words(flow.source);
    let now = conntrack::now();
    let found = conntrack::lookup::<F>(skb, &flow, Direction::Ingress, false, now);
    let from_ingress_proxy = call & delivery::FROM_INGRESS_PROXY != 0;
    if matches!(found.status(), Status::New | Status::Established) {
        // A packet that the pod has sent to itself through a service.
        let rev_nat =
            if F::same(flow.source, F::loopback()) { conntrack::sent_to_itself::<F>(skb, &flow) } else { 0 };
        // The ingress proxy enforces the rules that led the connection to it.
        if rev_nat == 0 && !from_ingress_proxy {
            policy::check::<F>(skb, me, src_label, &flow, found.status(), Way::Ingress)?;
        }
        // The proxy may have the address of the client: replies must not take the way to that.
        let proxied = from_ingress_proxy || deliver::is_to_proxy(skb);
        if found.status() == Status::New || proxied != found.is_proxied() {
            let loopback = if rev_nat != 0 { ct_flag::LB_LOOPBACK } else { 0 };
            let entered =
                if enabled!(nodeport) { conntrack::nodeport::entered_by::<F>(skb, &flow) } else { 0 };
            let is_entered =
                entered != 0 || enabled!(nodeport) && enabled!(dsr) && conntrack::dsr::is_entered::<F>(&flow);
            let node_port = if is_entered { ct_flag::NODE_PORT } else { 0 };
            let rev_nat = rev_nat | entered;
            let from_tunnel = enabled!(tunnel) && call & delivery::FROM_TUNNEL != 0;
            let tunnel = if from_tunnel { ct_flag::FROM_TUNNEL } else { 0 };
            let redirect = if proxied { ct_flag::PROXY_REDIRECT } else { 0 };
            let flags = loopback | tunnel | node_port | redirect;
            let state = State { src_label, flags, rev_nat, ..State::default() };
            conntrack::create::<F>(skb, &flow, Direction::Ingress, &state, now)?;
        }
    } else if found.is_proxied() && call & delivery::FROM_EGRESS_PROXY == 0 {
        deliver::to_proxy(skb, 0);
    } else if found.rev_nat() != 0 {
        pods::reply::<F>(skb, &mut flow, found.rev_nat(), found.flags() & ct_flag::LB_LOOPBACK != 0)?;
    }
    if deliver::is_to_proxy(skb) {
        trace!(skb, to_proxy(skb, of_connection(TO_PROXY, me, src_label, me.identity, &found)));
        // A packet at egress, from the host or at the pod's interface, gets its socket at ingress of cilium_net.
        let redirects = delivery::REDIRECT | delivery::USE_REDIRECT_PEER;
        if call & redirects != 0 && call & delivery::FROM_HOST == 0 {
            proxy::assign::<F>(skb)?;
        }
        return Ok(());
    }
    let at = of_connection(TO_LXC, me, src_label, me.identity, &found);
    trace!(skb, Trace { dst_id: me.id, ifindex: me.ifindex, orig_ip, ..at });
    Ok(())
}

/// Drops a packet to a pod.
#[inline(always)]
fn drop_received(skb: Skb, why: Drop, me: &EndpointConfig, src_label: u32) -> i32 {
    let (endpoint, flags, dst_label) = (me.id, me.flags, me.identity);
    let parties = Parties { endpoint, flags, src_label, dst_label, dst_id: me.id };
    dropped(skb, why, direction::INGRESS, parties)
}

/// Handles packets that the stack sends to a pod, at the pod's interface.
#[inline(always)]
pub(crate) fn to_container(skb: Skb) -> i32 {
    match skb.protocol() {
        ETH_IPV4 if enabled!(enable_ipv4) => at_interface::<V4>(skb),
        ETH_IPV6 if enabled!(enable_ipv6) => at_interface::<V6>(skb),
        _ => PASS,
    }
}

#[inline(always)]
fn at_interface<F: Services>(skb: Skb) -> i32 {
    let carried = skb.mark();
    let (point, label) = match carried & mark::MAGIC_MASK {
        mark::PROXY_INGRESS | mark::PROXY_EGRESS => (FROM_PROXY, mark::identity(carried)),
        mark::IDENTITY => (FROM_STACK, mark::identity(carried)),
        _ if is_of_host(skb, carried) => (FROM_STACK, identity::HOST),
        _ => (FROM_STACK, F::world()),
    };
    if carried & mark::MAGIC_MASK == mark::TO_PROXY {
        // Of another program of the node: only the policy below marks packets for a proxy.
        skb.set_mark(0);
    }
    let Some(me) = endpoint::by_ifindex(skb.ifindex()) else {
        let parties = Parties { src_label: label, ..Parties::default() };
        return dropped(skb, drop_here!(EP_NOT_READY), direction::INGRESS, parties);
    };
    let src_label = ipcache::sender_of::<F>(skb, label, ETH_LEN);
    let at = at_endpoint(point, me, src_label, me.identity);
    trace!(skb, Trace { dst_id: me.id, ifindex: skb.ingress_ifindex(), ..at });
    let Some(header) = F::header(skb) else {
        return drop_received(skb, drop_here!(INVALID_PACKET_DROPPED), me, src_label);
    };
    // SAFETY: checked by `header`; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    // The stack resolves the pod's MAC address.
    if F::is_neighbour_discovery(skb, ip) && F::is_from_link(ip) {
        return PASS;
    }
    skb.set_cb(cb::SRC_LABEL, src_label);
    // The packet is at the pod's interface already: no redirect.
    skb.set_cb(cb::DELIVERY_FLAGS, me.id << delivery::ENDPOINT_SHIFT | from_proxy(carried));
    if enabled!(host_firewall) && src_label == identity::HOST {
        // The host's own policy comes first; its program goes on to that of the pod.
        return firewall::dismiss::<F>(skb, src_label);
    }
    skb.tail_call(F::POLICY_SLOT);
    drop_received(skb, drop_here!(MISSED_TAIL_CALL), me, src_label)
}

/// Returns the trace with the proxy's port of a marked packet.
#[inline(always)]
fn to_proxy(skb: Skb, at: Trace) -> Trace {
    let port = u16::from_be((skb.mark() >> 16) as u16);
    Trace { dst_id: u32::from(port), ..at }
}

#[inline(always)]
fn at_endpoint(point: u8, me: &EndpointConfig, src_label: u32, dst_label: u32) -> Trace {
    let (reason, monitor, endpoint, flags) = (reason::UNKNOWN, true, me.id, me.flags);
    let (dst_id, ifindex, l3_device, orig_ip) = (0, 0, false, [0; 4]);
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

/// Returns a trace of a connection's packet at a point of an endpoint.
#[inline(always)]
fn of_connection(point: u8, me: &EndpointConfig, src_label: u32, dst_label: u32, found: &Found) -> Trace {
    let at = at_endpoint(point, me, src_label, dst_label);
    Trace { reason: found.status() as u8, monitor: found.monitor(), ..at }
}
