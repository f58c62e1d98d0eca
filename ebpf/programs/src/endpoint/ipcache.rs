//! Identities of addresses.

use crate::maps::cilium_ipcache_v2;
use crate::packet::family::Family;
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{ETH_IPV4, ETH_IPV6, Skb};
use datapath_abi::{IpcacheKey, RemoteEndpointInfo, identity};

/// The longest prefix that an address lies in.
#[inline(always)]
pub(crate) fn lookup<F: Family>(address: F::Address) -> Option<&'static RemoteEndpointInfo> {
    let prefixlen = IpcacheKey::STATIC_BITS + F::BITS;
    let key = IpcacheKey { prefixlen, cluster_id: 0, pad1: 0, family: F::NUMBER, address: F::words(address) };
    cilium_ipcache_v2.get(&key)
}

/// The identity of an address; the world's if the ipcache does not have it.
#[inline(always)]
pub(crate) fn identity_of<F: Family>(address: F::Address) -> u32 {
    match lookup::<F>(address) {
        Some(info) if info.sec_identity != identity::UNKNOWN => info.sec_identity,
        _ => F::world(),
    }
}

/// The identity of a packet's sender: `label` if the packet carried a real one, else what the ipcache has for its
/// source. Its "host" is ignored: masqueraded packets of others carry an address of the host, and
/// packets of the host carry that label already.
#[inline(always)]
pub(crate) fn resolve_source<F: Family>(label: u32, source: F::Address) -> u32 {
    if !is_reserved(label) {
        return label;
    }
    match lookup::<F>(source) {
        Some(info) if info.sec_identity != identity::UNKNOWN && info.sec_identity != identity::HOST => {
            info.sec_identity
        }
        _ => label,
    }
}

/// The identity of the sender of a packet whose IP header begins at `offset`: `label` unless that is only where the packet
/// comes from. UNKNOWN and any world become the world of the packet's family if the ipcache does not know the source.
/// Other packets than IP keep the label.
#[inline(always)]
pub(crate) fn sender(skb: Skb, label: u32, offset: usize) -> u32 {
    match skb.protocol() {
        ETH_IPV4 if enabled!(enable_ipv4) => sender_of::<V4>(skb, label, offset),
        ETH_IPV6 if enabled!(enable_ipv6) => sender_of::<V6>(skb, label, offset),
        _ => label,
    }
}

/// As [`sender`], of a packet of a family.
#[inline(always)]
pub(crate) fn sender_of<F: Family>(skb: Skb, label: u32, offset: usize) -> u32 {
    let label = if label == identity::UNKNOWN || is_world(label) { F::world() } else { label };
    match skb.pull_header::<F::Header>(offset) {
        // SAFETY: checked by `pull_header`.
        Some(header) => resolve_source::<F>(label, F::source(unsafe { &*header })),
        None => label,
    }
}

/// True for the world.
#[inline(always)]
pub(crate) fn is_world(label: u32) -> bool {
    matches!(label, identity::WORLD | identity::WORLD_IPV4 | identity::WORLD_IPV6)
}

/// True for identities of the way a packet came, not of its sender. The ingress proxy's is not one.
#[inline(always)]
fn is_reserved(label: u32) -> bool {
    const REMOTE_NODE_SCOPE: u32 = 2;
    label < identity::UNMANAGED
        || matches!(label, identity::REMOTE_NODE | identity::KUBE_APISERVER)
        || is_world(label)
        || label >> 24 == REMOTE_NODE_SCOPE
}
