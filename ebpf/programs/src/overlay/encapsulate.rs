//! Encapsulation: the tunnel's key of a packet, and the way to the tunnel device.

use crate::endpoint::ipcache;
use crate::monitor::drop::Drop;
use crate::monitor::trace::Trace;
use crate::packet::skb::Skb;
use datapath_abi::{RemoteEndpointInfo, file, identity, ipcache_flag};

const FILE: u8 = file::ENCAP;

/// The scopes of identities, in their highest byte: those of the cluster are below.
const SCOPE_SHIFT: u32 = 24;
const CLUSTER_SCOPE: u32 = 0;

/// Sends a packet by the tunnel to the node with an address. Its sender has the identity `at.src_label`.
#[inline(always)]
pub(crate) fn encapsulate(skb: Skb, info: &RemoteEndpointInfo, at: Trace) -> Result<i32, Drop> {
    // The tunnel device is absent, or the entry has been replaced by one without tunnel since it was read first.
    if !enabled!(tunnel_ifindex) || info.flags & ipcache_flag::HAS_TUNNEL_ENDPOINT == 0 {
        return Err(drop_here!(NO_TUNNEL_OR_ENCAPSULATION_ENDPOINT));
    }
    let ipv6 = info.flags & ipcache_flag::IPV6_TUNNEL_ENDPOINT != 0;
    if !skb.set_tunnel_key(on_the_wire(at.src_label), info.tunnel_endpoint, ipv6) {
        return Err(drop_here!(ERROR_WRITING_TO_PACKET));
    }
    trace!(skb, Trace { ifindex: node!(tunnel_ifindex), ..at });
    Ok(skb.redirect(node!(tunnel_ifindex)))
}

/// Returns the identity as other nodes know it. A key has 24 bits, which those of other nodes' prefixes would not fit
/// into: cut, they would be those of others.
#[inline(always)]
fn on_the_wire(label: u32) -> u32 {
    if label == identity::HOST {
        identity::REMOTE_NODE
    } else if ipcache::is_world(label) {
        identity::WORLD
    } else if label >> SCOPE_SHIFT == CLUSTER_SCOPE {
        label
    } else if ipcache::is_remote_node(label) {
        identity::REMOTE_NODE
    } else {
        identity::WORLD
    }
}
