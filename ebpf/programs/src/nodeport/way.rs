//! The way of packets to other machines: by the tunnel or by the host's routes, and the node's address on it.

use crate::endpoint::{self, ipcache};
use crate::monitor::drop::Drop;
#[cfg(not(feature = "xdp"))]
use crate::nat46x64;
use crate::nodeport::{NodePort, fib};
use crate::packet::family::Family;
use crate::packet::skb::Skb;
use crate::snat::{self, Snat};
use datapath_abi::{RemoteEndpointInfo, file, lxc_flag};

const FILE: u8 = file::NODEPORT_EGRESS;

/// Returns the source of clients' packets to a backend of another node: an address of this node.
#[inline(always)]
pub(crate) fn source_to<F: NodePort + Snat>(skb: Skb, backend: F::Address) -> F::Address {
    #[cfg(not(feature = "xdp"))]
    if nat46x64::embeds::<F>(backend) {
        return nat46x64::source_to::<F>(skb, backend);
    }
    match behind_tunnel::<F>(backend) {
        Some(_) => F::router(),
        None => address_to::<F>(skb, backend),
    }
}

/// Returns the node's address for packets to a backend.
#[inline(always)]
fn address_to<F: NodePort + Snat>(skb: Skb, backend: F::Address) -> F::Address {
    if enabled!(dynamic_source)
        && let Some(source) = fib::source_to::<F>(skb, backend)
        // Replies to another address would not come back here.
        && is_own::<F>(source)
    {
        return source;
    }
    snat::direct_routing_address::<F>()
}

/// True for an address of the host.
#[inline(always)]
pub(crate) fn is_own<F: Family>(address: F::Address) -> bool {
    matches!(endpoint::local::<F>(address), Some(info) if info.flags & lxc_flag::HOST != 0)
}

/// Returns the entry of an address that is reached by the tunnel.
#[inline(always)]
pub(crate) fn behind_tunnel<F: NodePort>(address: F::Address) -> Option<&'static RemoteEndpointInfo> {
    if !enabled!(tunnel) {
        return None;
    }
    ipcache::lookup::<F>(address).filter(|info| ipcache::is_tunnelled(info.flags, false))
}

/// Decrements the hop limit of a packet that is forwarded past the stack.
#[inline(always)]
pub(crate) fn forward_hop<F: NodePort>(skb: Skb) -> Result<(), Drop> {
    let Some(header) = F::header(skb) else { return Err(drop_here!(INVALID_PACKET_DROPPED)) };
    // SAFETY: `header` checked the bounds, and nothing has moved the packet since.
    F::decrement_hops(skb, unsafe { &mut *header })
}
