//! Mutual authentication: whether the identities of an endpoint and of a peer have authenticated.

use crate::endpoint::ipcache;
use crate::maps::{cilium_auth_map, cilium_node_map_v2, cilium_runtime_config, cilium_signals};
use crate::monitor::drop::Drop;
use crate::packet::family::Family;
use crate::packet::skb::Skb;
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_perf_event_output};
use datapath_abi::runtime_config::{UTIME_OFFSET, UTIME_SHIFT};
use datapath_abi::signal::{self, AuthKey, AuthRequired};
use datapath_abi::{FAMILY_V4, FAMILY_V6, NodeKey, RemoteEndpointInfo, file, ipcache_flag};

const FILE: u8 = file::BPF_LXC;

/// Checks the authentication of an endpoint's identity with that of the peer at an address. Without a live entry of the
/// authentication map the packet is dropped, and the agent is asked to authenticate the two.
#[inline(always)]
pub(crate) fn check<F: Family>(
    skb: Skb,
    local_identity: u32,
    (remote_identity, address): (u32, F::Address),
    auth_type: u8,
) -> Result<(), Drop> {
    let required = drop_here!(AUTH_REQUIRED).with_detail(auth_type as i8);
    if !enabled!(mesh_auth) {
        return Err(required);
    }
    let remote_node = match ipcache::lookup::<F>(address) {
        Some(peer) if peer.flags & ipcache_flag::HAS_TUNNEL_ENDPOINT != 0 => node_id(peer)?,
        _ => 0,
    };
    let key = AuthKey { local_identity, remote_identity, remote_node, auth_type, pad: 0 };
    if let Some(entry) = cilium_auth_map.get(&key)
        && utime() < entry.expiration
    {
        return Ok(());
    }
    request(skb, &key);
    Err(required)
}

/// Returns the id of a peer's node.
#[inline(always)]
fn node_id(peer: &RemoteEndpointInfo) -> Result<u16, Drop> {
    let is_ipv6 = peer.flags & ipcache_flag::IPV6_TUNNEL_ENDPOINT != 0;
    let family = if is_ipv6 { FAMILY_V6 } else { FAMILY_V4 };
    let key = NodeKey { pad1: 0, pad2: 0, family, address: peer.tunnel_endpoint };
    match cilium_node_map_v2.get(&key) {
        Some(node) if node.id != 0 => Ok(node.id),
        _ => Err(drop_here!(NO_NODE_ID)),
    }
}

/// Returns the time since 1970 in the units of the map's expirations.
#[inline(always)]
fn utime() -> u64 {
    // SAFETY: the helper takes no arguments.
    let monotonic = unsafe { bpf_ktime_get_ns() } >> UTIME_SHIFT;
    match cilium_runtime_config.get(&UTIME_OFFSET) {
        Some(offset) => monotonic + *offset,
        // Before the agent has written the offset all entries are expired.
        None => u64::MAX,
    }
}

/// Signals two identities to the agent, which authenticates them.
#[inline(always)]
fn request(skb: Skb, key: &AuthKey) {
    const CURRENT_CPU: u64 = 0xffff_ffff;
    let message = AuthRequired { signal: signal::AUTH_REQUIRED, key: *key };
    // SAFETY: context and map are valid; the message outlives the call and has the given length.
    unsafe {
        bpf_perf_event_output(
            skb.raw().cast(),
            cilium_signals.handle(),
            CURRENT_CPU,
            (&raw const message).cast_mut().cast(),
            size_of::<AuthRequired>() as u64,
        )
    };
}
