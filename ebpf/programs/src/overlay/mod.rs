//! The tunnel between nodes: packets from and to the tunnel device, and encapsulation.
//!
//! The identity of a packet's sender travels as the tunnel's key (the VNI). It is trusted: a node decides about its own
//! pods, and the network between nodes is the cluster's. Replies to clients of services have the router's address, as
//! have connections of the host: their ports must differ. Packets to frontends of services are translated as at devices.
//! Uses `device`, `endpoint`, `monitor`, `nodeport`, `packet` and `snat`.

pub(crate) mod encapsulate;

use crate::device;
use crate::endpoint;
use crate::endpoint::deliver::{self, Origin};
use crate::endpoint::ipcache;
use crate::endpoint::proxy;
use crate::monitor::drop::{Drop, Parties, dropped};
use crate::monitor::trace::Trace;
use crate::nat46x64;
use crate::nodeport::request::{Request, request};
use crate::nodeport::{self, NodePort, dsr};
use crate::packet::flow::Piece;
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{ETH_IPV4, ETH_IPV6, PASS, Skb};
use crate::snat::{Snat, TRANSLATED, UNTRANSLATED, masquerade};
use datapath_abi::dsr::dispatch;
use datapath_abi::mark::{self, cb};
use datapath_abi::trace::{FROM_OVERLAY, reason};
use datapath_abi::{FAMILY_V4, direction, file, identity, lxc_flag, slot};

const FILE: u8 = file::BPF_OVERLAY;

/// Handles packets that arrive by the tunnel. Packets other than IP are passed to the stack, which has no use for them.
#[inline(always)]
pub(crate) fn from_overlay(skb: Skb) -> i32 {
    skb.clear_cb();
    let slot = match skb.protocol() {
        ETH_IPV4 if enabled!(enable_ipv4) => slot::IPV4_FROM_OVERLAY,
        ETH_IPV6 if enabled!(enable_ipv6) => slot::IPV6_FROM_OVERLAY,
        _ => return PASS,
    };
    let Some(label) = skb.tunnel_id() else {
        return drop_received(skb, drop_here!(ERROR_RETRIEVING_TUNNEL_KEY), identity::UNKNOWN);
    };
    // Hosts send as remote nodes; "host" would be this one.
    if label == identity::HOST {
        return drop_received(skb, drop_here!(INVALID_IDENTITY), label);
    }
    let label = match (label, skb.protocol()) {
        (identity::WORLD, ETH_IPV4) if enabled!(enable_ipv6) => identity::WORLD_IPV4,
        (identity::WORLD, ETH_IPV6) if enabled!(enable_ipv4) => identity::WORLD_IPV6,
        _ => label,
    };
    skb.set_cb(cb::SRC_LABEL, label);
    trace!(
        skb,
        Trace {
            point: FROM_OVERLAY,
            reason: reason::UNKNOWN,
            monitor: true,
            endpoint: 0,
            flags: 0,
            src_label: label,
            dst_label: identity::UNKNOWN,
            dst_id: 0,
            ifindex: skb.ingress_ifindex(),
            l3_device: false,
            orig_ip: [0; 4],
        }
    );
    skb.tail_call(slot);
    drop_received(skb, drop_here!(MISSED_TAIL_CALL), label)
}

/// Delivers an IP packet of another node to a pod of this node, or passes it to the host.
#[inline(always)]
pub(crate) fn to_pods<F: NodePort + Snat>(skb: Skb) -> i32 {
    let label = skb.cb(cb::SRC_LABEL);
    match forward::<F>(skb, label) {
        Ok(verdict) => verdict,
        Err(why) => drop_received(skb, why, label),
    }
}

#[inline(always)]
fn forward<F: NodePort + Snat>(skb: Skb, label: u32) -> Result<i32, Drop> {
    if enabled!(nodeport) && !device::is_looked_up(skb) {
        let request = request::<F>(skb)?;
        if request == Request::Proxied {
            proxy::assign::<F>(skb)?;
            return Ok(PASS);
        }
        if request == Request::Other && enabled!(nat46x64) {
            nat46x64::dispatch::<F>(skb)?;
        }
        if request == Request::Other && enabled!(dsr) && dsr::is_by(dispatch::GENEVE) {
            skb.tail_call(F::DSR_RECEIVE_SLOT);
            return Err(drop_here!(MISSED_TAIL_CALL));
        }
    }
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: checked by `header`; nothing is written while this borrow is used.
    let ip = unsafe { &*header };
    if F::NUMBER == FAMILY_V4 && !F::tracks_fragments() && F::upper(skb, ip)?.piece != Piece::WHOLE {
        return Err(drop_here!(IP_FRAGMENTATION_NOT_SUPPORTED));
    }
    // Nodes do not know what else this node knows of them: the API server, labels of nodes.
    // For clients of services they have no other identity than "world".
    let is_client = dsr::is_by(dispatch::GENEVE) && ipcache::is_world(label);
    let src_label = if ipcache::is_remote_node(label) || is_client {
        ipcache::resolve_source::<F>(label, F::source(ip))
    } else {
        label
    };
    match endpoint::local::<F>(F::destination(ip)) {
        Some(pod) if pod.flags & lxc_flag::HOST_DELIVERY == 0 => {
            deliver::to_pod::<F>(skb, header, pod, src_label, Origin::Tunnel)
        }
        _ => {
            if enabled!(nodeport) && F::same(F::destination(ip), F::router()) && !device::is_looked_up(skb) {
                skb.tail_call(F::INGRESS_SLOT);
                return Err(drop_here!(MISSED_TAIL_CALL));
            }
            F::route(skb, header, node!(tunnel_mac), node!(host_mac))?;
            skb.set_mark(mark::with_identity(mark::IDENTITY, src_label));
            Ok(skb.redirect_ingress(node!(host_ifindex)))
        }
    }
}

/// Handles packets that leave by the tunnel: their mark says so, so that rules of the host and programs of devices leave
/// them as they are.
#[inline(always)]
pub(crate) fn to_overlay(skb: Skb) -> i32 {
    let label = skb.tunnel_id().unwrap_or(identity::UNKNOWN);
    if enabled!(nodeport) && skb.mark() & mark::MAGIC_MASK != mark::SNAT_DONE {
        let translated = match skb.protocol() {
            ETH_IPV4 if enabled!(enable_ipv4) => translate::<V4>(skb, label),
            ETH_IPV6 if enabled!(enable_ipv6) => translate::<V6>(skb, label),
            _ => Ok(()),
        };
        if let Err(why) = translated {
            let parties = Parties { src_label: label, ..Parties::default() };
            return dropped(skb, why, direction::EGRESS, parties);
        }
    }
    skb.set_mark(mark::with_identity(mark::OVERLAY, label));
    PASS
}

/// Translates a packet of the host to the frontend if it is a reply of a service. Else its port is reserved.
#[inline(always)]
fn translate<F: NodePort + Snat>(skb: Skb, label: u32) -> Result<(), Drop> {
    // Only hosts send as remote nodes; replies of pods are translated at their interfaces.
    if label == identity::REMOTE_NODE {
        match skb.forget(nodeport::reply::at_tunnel::<F>(skb.raw())) {
            UNTRANSLATED => {}
            TRANSLATED => return Ok(()),
            why => return Err(Drop::unpacked(why)),
        }
    }
    masquerade::reserve_router_port::<F>(skb)
}

/// Drops a packet of another node.
#[inline(always)]
fn drop_received(skb: Skb, why: Drop, src_label: u32) -> i32 {
    let parties = Parties { src_label, ..Parties::default() };
    dropped(skb, why, direction::INGRESS, parties)
}
