//! Replies of backends of this node to clients outside the cluster: they get the frontend's address, and leave by the
//! host's routes for it, or by the tunnel to clients that are reached by it.

use crate::conntrack::{self, Found, Status};
use crate::device;
use crate::endpoint;
use crate::endpoint::deliver;
use crate::host::at_host;
use crate::lb::row;
use crate::monitor::drop::{Drop, Parties, dropped};
use crate::monitor::trace::Trace;
use crate::nat::{self, Socket};
use crate::nat46x64;
use crate::nodeport::fib::Route;
use crate::nodeport::{NodePort, refusal, way};
use crate::overlay::encapsulate::encapsulate;
use crate::packet::flow::{self, Flow};
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{ETH_IPV4, ETH_IPV6, PASS, Skb};
use crate::pod::container::drop_sent;
use crate::snat::{Snat, TRANSLATED, UNTRANSLATED};
use aya_ebpf::bindings::__sk_buff;
use datapath_abi::drop::TTL_EXCEEDED;
use datapath_abi::trace::{TO_NETWORK, TO_OVERLAY, reason};
use datapath_abi::{EndpointConfig, FAMILY_V6, ct_flag, direction, file, identity, mark, slot};

const FILE: u8 = file::NODEPORT_EGRESS;

/// Passes a pod's reply to [`from_pod`] if its connection came by a device and a service. Returns in all other cases.
#[inline(always)]
pub(crate) fn hand_over<F: NodePort>(skb: Skb, found: &Found, at: Trace) -> Result<(), Drop> {
    if enabled!(nodeport)
        && matches!(found.status(), Status::Reply | Status::Related)
        && found.flags() & ct_flag::NODE_PORT != 0
    {
        trace!(skb, at);
        skb.tail_call(F::POD_REPLY_SLOT);
        return Err(drop_here!(MISSED_TAIL_CALL));
    }
    Ok(())
}

/// Translates a pod's reply and sends it to the client.
#[inline(always)]
pub(crate) fn from_pod<F: NodePort + Snat>(skb: Skb) -> i32 {
    let Some(me) = endpoint::by_ifindex(skb.ifindex()) else {
        return drop_sent(skb, drop_here!(EP_NOT_READY), None);
    };
    match leave::<F>(skb, me) {
        Ok(verdict) => verdict,
        Err(why) => {
            let why = why.any(skb);
            if F::NUMBER == FAMILY_V6 && why.reason() == TTL_EXCEEDED {
                // The tail call does not return unless the program is missing.
                skb.tail_call(slot::ICMP6_TIME_EXCEEDED);
            }
            drop_sent(skb, why, Some(me))
        }
    }
}

#[inline(always)]
fn leave<F: NodePort + Snat>(skb: Skb, me: &EndpointConfig) -> Result<i32, Drop> {
    let mut flow = flow_of::<F>(skb)?;
    let Some(to) = frontend::<F>(skb, &flow) else {
        if !flow.is_related() {
            return Err(drop_here!(NO_MAPPING_FOR_NAT_MASQUERADE));
        }
        // An ICMP error about another packet of the same client.
        deliver::to_stack(skb, me.identity);
        return Ok(PASS);
    };
    to_client::<F>(skb, &mut flow, to)
}

/// Returns the frontend by which the receiver of a packet has reached its sender: of this node or, with direct server
/// return, of another one.
#[inline(always)]
fn frontend<F: NodePort + Snat>(skb: Skb, flow: &Flow<F::Address>) -> Option<Socket<F::Address>> {
    let now = conntrack::now();
    let rev_nat = conntrack::nodeport::replied_by::<F>(skb, flow, now);
    match row(&F::reverse_nat(), &rev_nat) {
        Some(service) => Some(Socket { address: service.address, port: service.port }),
        None if enabled!(dsr) => conntrack::dsr::replied_by::<F>(skb, flow, now),
        None => None,
    }
}

/// Sends a reply of another node's backend to the client, of which it has the address again. `None` for a packet that is
/// no reply of a service.
#[inline(always)]
pub(crate) fn of_service<F: NodePort>(skb: Skb) -> Result<Option<i32>, Drop> {
    let mut flow = flow_of::<F>(skb)?;
    let rev_nat = conntrack::nodeport::replied_by::<F>(skb, &flow, conntrack::now());
    let Some(service) = row(&F::reverse_nat(), &rev_nat) else { return Ok(None) };
    if !flow.is_related() {
        refusal::check_hops::<F>(skb, refusal::REPLY)?;
    }
    let to = Socket { address: service.address, port: service.port };
    to_client::<F>(skb, &mut flow, to).map(Some)
}

/// Gives a reply the frontend's address, and sends it by the tunnel or by the host's route.
#[inline(always)]
fn to_client<F: NodePort>(
    skb: Skb,
    flow: &mut Flow<F::Address>,
    to: Socket<F::Address>,
) -> Result<i32, Drop> {
    let client = flow.destination;
    translate::<F>(skb, flow, to)?;
    way::forward_hop::<F>(skb)?;
    if nat46x64::is_mapped::<F>(to.address) {
        return Err(nat46x64::leave(skb));
    }
    skb.set_mark(mark::SNAT_DONE);
    if let Some(info) = way::behind_tunnel::<F>(client) {
        // The frontend is an address of this node.
        let at = at_host(TO_OVERLAY, identity::REMOTE_NODE, info.sec_identity);
        return encapsulate(skb, info, Trace { reason: reason::CT_REPLY, ..at });
    }
    let route = Route::of::<F>(skb, to.address, client)?;
    Ok(route.redirect())
}

/// Translates a packet that the host sends by the tunnel if it is a reply to a client of a service. Returns the result
/// as steps of masquerading do. A function of its own: it does not fit on the stack of the tunnel's program.
#[inline(never)]
pub(crate) fn at_tunnel<F: NodePort + Snat>(raw: *mut __sk_buff) -> u64 {
    match to_remote_client::<F>(Skb::from_raw(raw)) {
        Ok(true) => TRANSLATED,
        Ok(false) => UNTRANSLATED,
        Err(why) => why.packed(),
    }
}

#[inline(always)]
fn to_remote_client<F: NodePort + Snat>(skb: Skb) -> Result<bool, Drop> {
    // Packets that programs cannot read, such as those of other protocols, are nothing to services.
    let Ok(mut flow) = flow_of::<F>(skb) else { return Ok(false) };
    let Some(to) = frontend::<F>(skb, &flow) else { return Ok(false) };
    translate::<F>(skb, &mut flow, to)?;
    Ok(true)
}

/// Translates the source of a reply to the frontend; in an ICMP error also the destination of the quoted packet.
#[inline(always)]
fn translate<F: NodePort>(skb: Skb, flow: &mut Flow<F::Address>, to: Socket<F::Address>) -> Result<(), Drop> {
    let client = flow.destination;
    if flow.is_related() {
        nat::quoted::<F>(skb, flow.offset(), to, client)?;
    }
    nat::to_source::<F>(skb, flow, to, client, false)
}

#[inline(always)]
pub(crate) fn flow_of<F: NodePort>(skb: Skb) -> Result<Flow<F::Address>, Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing is written while this borrow is used.
    flow::of::<F>(skb, unsafe { &*header }, flow::UNCOUNTED)
}

/// Passes a packet that a device sends to [`at_device`] if it may be a reply of the host. Returns in all other cases:
/// the packet is translated or encapsulated already.
#[inline(always)]
pub(crate) fn dispatch(skb: Skb) {
    if matches!(skb.mark() & mark::MAGIC_MASK, mark::SNAT_DONE | mark::OVERLAY | mark::ENCRYPT)
        || device::is_l3_device(skb.ifindex())
    {
        return;
    }
    match skb.protocol() {
        ETH_IPV4 if enabled!(enable_ipv4) => skb.tail_call(V4::DEVICE_REPLY_SLOT),
        ETH_IPV6 if enabled!(enable_ipv6) => skb.tail_call(V6::DEVICE_REPLY_SLOT),
        _ => {}
    }
}

/// Translates a packet that a device sends if it is a reply to a client of a service. Replies of pods are translated at
/// the pods; these are of backends in the host's network, and ICMP errors of the host's stack.
#[inline(always)]
pub(crate) fn at_device<F: NodePort + Snat>(skb: Skb) -> i32 {
    match depart::<F>(skb) {
        Ok(verdict) => verdict,
        Err(why) => {
            let parties = Parties {
                endpoint: node!(host_endpoint_id),
                src_label: identity::HOST,
                ..Parties::default()
            };
            dropped(skb, why, direction::EGRESS, parties)
        }
    }
}

#[inline(always)]
fn depart<F: NodePort + Snat>(skb: Skb) -> Result<i32, Drop> {
    // Packets that programs cannot read, such as those of other protocols, are nothing to services.
    let Ok(mut flow) = flow_of::<F>(skb) else { return Ok(device::depart(skb)) };
    let Some(to) = frontend::<F>(skb, &flow) else { return Ok(device::depart(skb)) };
    if nat46x64::is_mapped::<F>(to.address) {
        translate::<F>(skb, &mut flow, to)?;
        return Err(nat46x64::leave(skb));
    }
    // The stack has chosen the device by the backend's address. The other device's program translates.
    let route = Route::of::<F>(skb, to.address, flow.destination)?;
    if route.ifindex() != skb.ifindex() {
        return Ok(route.redirect());
    }
    translate::<F>(skb, &mut flow, to)?;
    skb.set_mark(mark::SNAT_DONE);
    let at = at_host(TO_NETWORK, identity::HOST, identity::UNKNOWN);
    trace!(skb, Trace { ifindex: skb.ifindex(), reason: reason::CT_REPLY, ..at });
    Ok(PASS)
}
