//! Devices of the node: packets from and to the network, of this network and not of VLANs on it ([`vlan`]).

mod vlan;

use crate::endpoint;
use crate::endpoint::deliver::{self, Origin};
use crate::endpoint::ipcache;
use crate::endpoint::proxy;
use crate::host::{at_host, drop_incoming, firewall, is_of_host};
use crate::maps::cilium_devices;
use crate::monitor::drop::{Drop, Parties, dropped};
use crate::monitor::trace::{self, Trace};
use crate::nat46x64;
use crate::nodeport::request::{Request, request};
use crate::nodeport::{NodePort, dsr, ipip, probe, reply};
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{ETH_IPV4, ETH_IPV6, ETH_LEN, PASS, Skb};
use crate::snat::{Snat, masquerade};
use datapath_abi::dsr::dispatch;
use datapath_abi::mark::{self, cb, xdp_transfer};
use datapath_abi::trace::{FROM_NETWORK, TO_NETWORK};
use datapath_abi::{before_services, direction, file, identity, lxc_flag, slot};

const FILE: u8 = file::BPF_HOST;

/// The word of the context that is not zero if a packet was looked up among services and translations already.
const LOOKED_UP: usize = 2;

/// Marks a packet as one that only has to be delivered.
#[inline(always)]
pub(crate) fn set_looked_up(skb: Skb) {
    skb.set_cb(LOOKED_UP, 1);
}

/// Takes the mark of [`set_looked_up`] back.
#[inline(always)]
pub(crate) fn set_unknown(skb: Skb) {
    skb.set_cb(LOOKED_UP, 0);
}

/// True for a packet that only has to be delivered.
#[inline(always)]
pub(crate) fn is_looked_up(skb: Skb) -> bool {
    skb.cb(LOOKED_UP) != 0
}

/// Handles packets that a device of the node receives. With BPF host routing packets for pods are delivered here, else
/// the stack routes them to cilium_host.
#[inline(always)]
pub(crate) fn from_netdev(skb: Skb) -> i32 {
    skb.clear_cb();
    if let Some(verdict) = vlan::filter(skb, direction::INGRESS) {
        return verdict;
    }
    let traced = trace::wanted(FROM_NETWORK, 0);
    let l3_device = (traced || handles_received()) && is_l3_device(skb.ifindex());
    // Packets without an event do not need this ipcache lookup.
    let src_label = if traced { sender(skb, l3_device) } else { identity::UNKNOWN };
    let at = at_host(FROM_NETWORK, src_label, identity::UNKNOWN);
    trace!(skb, Trace { ifindex: skb.ingress_ifindex(), l3_device, ..at });
    if !handles_received() || l3_device && !add_header(skb) {
        return PASS;
    }
    if enabled!(before_services) {
        if has(before_services::XDP) && skb.transferred() & xdp_transfer::NO_SERVICE != 0 {
            set_looked_up(skb);
        }
        if has(before_services::IPIP)
            && let Some(missed) = ipip::dispatch(skb)
        {
            return drop_incoming(skb, missed, src_label);
        }
    }
    let missed = match skb.protocol() {
        ETH_IPV4 if enabled!(enable_ipv4) => {
            skb.tail_call(received::<V4>());
            drop_here!(MISSED_TAIL_CALL)
        }
        ETH_IPV6 if enabled!(enable_ipv6) => {
            skb.tail_call(received::<V6>());
            drop_here!(MISSED_TAIL_CALL)
        }
        other => return firewall::other_protocol(skb, other, direction::INGRESS),
    };
    drop_incoming(skb, missed, src_label)
}

/// Adds an Ethernet header without addresses to a packet of a device that has none: programs and pods need one, the stack
/// does not look at it. False for a packet that is left to the stack: with the host firewall all of such devices, as it
/// does not see what leaves by them.
#[inline(always)]
fn add_header(skb: Skb) -> bool {
    let is_needed = (enabled!(nodeport) || enabled!(host_routing)) && !enabled!(host_firewall);
    is_needed && matches!(skb.protocol(), ETH_IPV4 | ETH_IPV6) && skb.prepend_ethernet()
}

/// True if programs do more with packets that a device receives than to report them.
#[inline(always)]
fn handles_received() -> bool {
    enabled!(host_routing)
        || enabled!(nodeport)
        || enabled!(masquerade_ipv4)
        || enabled!(masquerade_ipv6)
        || enabled!(host_firewall)
        || enabled!(before_services)
}

/// True for a step before services that is enabled.
#[inline(always)]
fn has(step: u8) -> bool {
    node!(before_services) & step != 0
}

/// Returns the slot of the first program for packets of a family: services come before translations of the node.
#[inline(always)]
pub(crate) fn received<F: Snat>() -> u32 {
    if F::is_masqueraded() && !enabled!(nodeport) { F::INGRESS_SLOT } else { F::DELIVERY_SLOT }
}

/// Returns the identity of the sender of a packet that a device of the node received.
#[inline(always)]
fn sender(skb: Skb, l3_device: bool) -> u32 {
    // The header's offset is a constant in each branch, as the verifier requires of packet pointers.
    if l3_device {
        ipcache::sender(skb, identity::UNKNOWN, 0)
    } else {
        ipcache::sender(skb, identity::UNKNOWN, ETH_LEN)
    }
}

/// True for a device without Ethernet headers.
#[inline(always)]
pub(crate) fn is_l3_device(ifindex: u32) -> bool {
    matches!(cilium_devices.get(&ifindex), Some(device) if device.l3 & 1 != 0)
}

/// Routes an IP packet from the network to a pod of this node, or passes it to the stack.
#[inline(always)]
pub(crate) fn to_pods<F: NodePort + Snat>(skb: Skb) -> i32 {
    match forward::<F>(skb) {
        Ok(verdict) => verdict,
        Err(why) => drop_incoming(skb, why, ipcache::sender_of::<F>(skb, F::world(), ETH_LEN)),
    }
}

#[inline(always)]
fn forward<F: NodePort + Snat>(skb: Skb) -> Result<i32, Drop> {
    if enabled!(nodeport) {
        let is_delivery = is_looked_up(skb);
        skb.set_cb(LOOKED_UP, 0);
        let request = if is_delivery { Request::Local } else { request::<F>(skb)? };
        if request == Request::Proxied {
            proxy::assign::<F>(skb)?;
            return Ok(PASS);
        }
        if request == Request::Other && enabled!(nat46x64) {
            nat46x64::dispatch::<F>(skb)?;
        }
        if request == Request::Other && F::is_translated() {
            if enabled!(dsr) && dsr::is_by(dispatch::OPTION) {
                skb.tail_call(F::DSR_RECEIVE_SLOT);
                return Err(drop_here!(MISSED_TAIL_CALL));
            }
            skb.tail_call(F::INGRESS_SLOT);
            return Err(drop_here!(MISSED_TAIL_CALL));
        }
    }
    if !enabled!(host_routing) {
        return Ok(firewall::admit::<F>(skb, identity::UNKNOWN));
    }
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds; nothing writes or moves the packet while this borrow is used.
    let ip = unsafe { &*header };
    let Some(pod) = endpoint::local::<F>(F::destination(ip)) else {
        return Ok(firewall::admit::<F>(skb, identity::UNKNOWN));
    };
    // The stack informs senders of packets that end at this hop.
    if pod.flags & lxc_flag::HOST_DELIVERY != 0 || F::hops(ip) <= 1 {
        return Ok(firewall::admit::<F>(skb, identity::UNKNOWN));
    }
    let src_label = ipcache::resolve_source::<F>(F::world(), F::source(ip));
    deliver::to_pod::<F>(skb, header, pod, src_label, Origin::Network)
}

/// Handles packets that a device of the node sends.
#[inline(always)]
pub(crate) fn to_netdev(skb: Skb) -> i32 {
    if let Some(verdict) = vlan::filter(skb, direction::EGRESS) {
        return verdict;
    }
    let carried = skb.mark();
    if enabled!(host_firewall)
        && carried & mark::MAGIC_MASK != mark::SNAT_DONE
        && !is_l3_device(skb.ifindex())
    {
        let label = firewall::marked(skb, carried);
        skb.set_cb(cb::DELIVERY_FLAGS, 0);
        if carried & mark::MAGIC_MASK == mark::TO_PROXY {
            // Of another program of the node: only the policy of the host marks packets for a proxy here.
            skb.set_mark(0);
        }
        match skb.protocol() {
            ETH_IPV4 if enabled!(enable_ipv4) => return firewall::dismiss::<V4>(skb, label),
            ETH_IPV6 if enabled!(enable_ipv6) => return firewall::dismiss::<V6>(skb, label),
            other => {
                let verdict = firewall::other_protocol(skb, other, direction::EGRESS);
                if verdict != PASS {
                    return verdict;
                }
            }
        }
    }
    send(skb)
}

/// Sends a packet, or passes it to the program for replies of services.
#[inline(always)]
pub(crate) fn send(skb: Skb) -> i32 {
    if enabled!(nodeport) {
        if enabled!(probes)
            && let Some(verdict) = probe::dispatch(skb)
        {
            return verdict;
        }
        reply::dispatch(skb);
    }
    depart(skb)
}

/// Sends a packet that is no reply of a service: the source of one that leaves the cluster is translated.
#[inline(always)]
pub(crate) fn depart(skb: Skb) -> i32 {
    let carried = skb.mark();
    let translates = V4::is_translated() || V6::is_translated();
    if translates && !masquerade::is_exempt(carried) && !is_l3_device(skb.ifindex()) {
        match skb.protocol() {
            ETH_IPV4 if V4::is_translated() => {
                skb.tail_call(slot::IPV4_SNAT_FORWARD);
                return drop_outgoing(skb);
            }
            ETH_IPV6 if V6::is_translated() => {
                skb.tail_call(slot::IPV6_SNAT_FORWARD);
                return drop_outgoing(skb);
            }
            _ => {}
        }
    }
    to_network(skb, carried, [0; 4])
}

/// Drops a packet of which the next program is missing: its address must not leave the node untranslated.
#[inline(always)]
fn drop_outgoing(skb: Skb) -> i32 {
    let parties = Parties { endpoint: node!(host_endpoint_id), ..Parties::default() };
    dropped(skb, drop_here!(MISSED_TAIL_CALL), direction::EGRESS, parties)
}

/// Passes a packet with this mark on to the network. `orig_ip` is the source of a translated one before that.
#[inline(always)]
pub(crate) fn to_network(skb: Skb, carried: u32, orig_ip: [u32; 4]) -> i32 {
    let label = match carried & mark::MAGIC_MASK {
        mark::IDENTITY => mark::identity(carried),
        _ if is_of_host(skb, carried) => identity::HOST,
        _ => identity::UNKNOWN,
    };
    let at = at_host(TO_NETWORK, label, identity::UNKNOWN);
    trace!(skb, Trace { ifindex: skb.ifindex(), orig_ip, ..at });
    PASS
}
