//! The last step of a packet: delivery to a pod of this node, or to the host's stack.

use crate::monitor::drop::Drop;
use crate::monitor::metrics;
use crate::packet::family::Family;
use crate::packet::skb::Skb;
use datapath_abi::mark::{self, cb, delivery};
use datapath_abi::{EndpointInfo, direction, file, metric};

const FILE: u8 = file::LOCAL_DELIVERY;

/// The origin of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A pod of this node.
    Pod,
    /// The host's stack, by cilium_host.
    Host,
    /// A proxy in the host, by cilium_host; with its flag in [`delivery`].
    Proxy(u32),
    /// A device of the node.
    Network,
    /// Another node, by the tunnel.
    Tunnel,
}

/// Rewrites hop limit and MAC addresses and tail-calls the destination pod's ingress policy program. Returns only with
/// a redirect to the pod's interface, where `cil_to_container` applies policy (endpoint routes), or a drop.
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
        // Packets between nodes bypass the host's stack in both directions, as those between pods of a node.
        Origin::Pod | Origin::Tunnel => enabled!(redirect_peer),
        Origin::Network => enabled!(host_routing),
        // bpf_redirect_peer works at tc ingress only, and packets from the host are at egress of cilium_host.
        Origin::Host | Origin::Proxy(_) => false,
    };
    if enabled!(endpoint_routes) && !redirect_peer {
        let magic = match origin {
            Origin::Proxy(delivery::FROM_INGRESS_PROXY) => mark::PROXY_INGRESS,
            Origin::Proxy(_) => mark::PROXY_EGRESS,
            _ => mark::IDENTITY,
        };
        skb.set_mark(mark::with_identity(magic, src_label));
        return Ok(skb.redirect(ifindex));
    }
    let mut flags = delivery::REDIRECT;
    if redirect_peer {
        flags |= delivery::USE_REDIRECT_PEER;
    }
    match origin {
        Origin::Host => flags |= delivery::FROM_HOST,
        Origin::Proxy(proxy) => flags |= delivery::FROM_HOST | proxy,
        _ => {}
    }
    if origin == Origin::Tunnel {
        flags |= delivery::FROM_TUNNEL;
        // The tunnel device takes the inner packet for one of another host by its MAC address; the pod's stack, which
        // a redirect to the peer reaches directly, would drop it.
        if redirect_peer {
            skb.set_type_host();
        }
    }
    skb.set_cb(cb::SRC_LABEL, src_label);
    skb.set_cb(cb::DELIVERY_FLAGS, flags | id << delivery::ENDPOINT_SHIFT);
    skb.set_cb(cb::CLUSTER_ID, 0);
    skb.tail_call(F::POLICY_SLOT);
    Err(drop_here!(EP_NOT_READY))
}

/// Marks a packet for the proxy at a port as on the wire, or with 0 for the proxy's socket that it belongs to. The stack
/// delivers it, by the routing table for this mark and rules of iptables, or the socket of [`super::proxy::assign`].
#[inline(always)]
pub(crate) fn to_proxy(skb: Skb, port: u16) {
    skb.set_mark(mark::to_proxy(port));
}

/// True if [`to_proxy`] has marked the packet.
#[inline(always)]
pub(crate) fn is_to_proxy(skb: Skb) -> bool {
    skb.mark() & mark::MAGIC_MASK == mark::TO_PROXY
}

/// Encodes the source identity in a pod packet's mark before it is passed to the host's stack. Hop limit and MAC
/// addresses stay: the host may be the receiver, and else the stack forwards and decrements. All packets of pods that
/// programs pass to the stack need it: an nftables rule drops unmarked ones as packets of unknown pods.
#[inline(always)]
pub(crate) fn to_stack(skb: Skb, src_label: u32) {
    if enabled!(identity_mark) {
        skb.set_mark(mark::with_identity(mark::IDENTITY, src_label));
    }
}
