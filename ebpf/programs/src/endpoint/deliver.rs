//! The last step: to a pod of this node, or to the host's stack.

use crate::monitor::drop::Drop;
use crate::monitor::metrics;
use crate::packet::family::Family;
use crate::packet::skb::Skb;
use datapath_abi::mark::{self, cb, delivery};
use datapath_abi::{EndpointInfo, direction, file, metric};

const FILE: u8 = file::LOCAL_DELIVERY;

/// Where a packet comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A pod of this node.
    Pod,
    /// The host's own stack, by cilium_host.
    Host,
    /// A device of the node.
    Network,
}

/// Routes a packet to a pod and goes on in the program that guards it; returns only with a redirect towards
/// `cil_to_container` (endpoint routes) or a drop.
#[inline(always)]
pub(crate) fn to_pod<F: Family>(
    skb: Skb,
    header: *mut F::Header,
    pod: &EndpointInfo,
    src_label: u32,
    origin: Origin,
) -> Result<i32, Drop> {
    let (ifindex, id) = (pod.ifindex, u32::from(pod.lxc_id));
    F::route(skb, header, pod.node_mac, pod.mac)?;
    if origin == Origin::Pod {
        metrics::count(metric::FORWARDED, direction::EGRESS, FILE, line!() as u16, skb.len());
    }
    let redirect_peer = match origin {
        Origin::Pod => enabled!(redirect_peer),
        Origin::Network => enabled!(host_routing),
        // A packet on its way out of cilium_host cannot turn into one that comes in at the pod's side.
        Origin::Host => false,
    };
    if enabled!(endpoint_routes) && !redirect_peer {
        skb.set_mark(mark::with_identity(mark::IDENTITY, src_label));
        return Ok(skb.redirect(ifindex));
    }
    let mut flags = delivery::REDIRECT;
    if redirect_peer {
        flags |= delivery::USE_REDIRECT_PEER;
    }
    if origin == Origin::Host {
        flags |= delivery::FROM_HOST;
    }
    skb.set_cb(cb::SRC_LABEL, src_label);
    skb.set_cb(cb::DELIVERY_FLAGS, flags | id << delivery::ENDPOINT_SHIFT);
    skb.set_cb(cb::CLUSTER_ID, 0);
    skb.tail_call(F::POLICY_SLOT);
    Err(drop_here!(EP_NOT_READY))
}

/// Marks a pod's packet with its identity and leaves it to the host's stack, as it is: the host may be its receiver, and
/// forwarding is a hop of the stack's. Everything that a pod's program leaves to the stack needs the mark: a packet of a
/// pod without it is one of an endpoint that the agent does not know, which a rule of nftables drops.
#[inline(always)]
pub(crate) fn to_stack(skb: Skb, src_label: u32) {
    if enabled!(identity_mark) {
        skb.set_mark(mark::with_identity(mark::IDENTITY, src_label));
    }
}
