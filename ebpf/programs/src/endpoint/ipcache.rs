//! Identities of addresses.

use crate::maps::cilium_ipcache_v2;
use crate::packet::family::Family;
use crate::packet::ipv4::V4;
use crate::packet::ipv6::V6;
use crate::packet::skb::{ETH_IPV4, ETH_IPV6, Skb};
use datapath_abi::{IpcacheKey, RemoteEndpointInfo, identity, ipcache_flag};

/// Looks up the entry of the longest prefix that contains an address.
#[inline(always)]
pub(crate) fn lookup<F: Family>(address: F::Address) -> Option<&'static RemoteEndpointInfo> {
    let prefixlen = IpcacheKey::STATIC_BITS + F::BITS;
    let key = IpcacheKey { prefixlen, cluster_id: 0, pad1: 0, family: F::NUMBER, address: F::words(address) };
    cilium_ipcache_v2.get(&key)
}

/// Returns the identity of an address; the world's if the ipcache has no entry.
#[inline(always)]
pub(crate) fn identity_of<F: Family>(address: F::Address) -> u32 {
    match lookup::<F>(address) {
        Some(info) if info.sec_identity != identity::UNKNOWN => info.sec_identity,
        _ => F::world(),
    }
}

/// The receiver of a packet as the ipcache has it: one packed integer, which the verifier does not follow by value.
#[derive(Clone, Copy)]
pub(crate) struct Receiver(u64);

impl Receiver {
    const FLAGS_SHIFT: u32 = 32;

    /// Looks up an address; the world if the ipcache has no entry.
    #[inline(always)]
    pub(crate) fn of<F: Family>(skb: Skb, address: F::Address) -> Self {
        let (label, flags) = match lookup::<F>(address) {
            Some(info) if info.sec_identity != identity::UNKNOWN => (info.sec_identity, info.flags),
            Some(info) => (F::world(), info.flags),
            None => (F::world(), 0),
        };
        let flags = if enabled!(tunnel) { u64::from(flags) << Self::FLAGS_SHIFT } else { 0 };
        Self(skb.forget(u64::from(label) | flags))
    }

    /// Returns its identity.
    #[inline(always)]
    pub(crate) fn label(self) -> u32 {
        self.0 as u32
    }

    /// Returns it with the flag that packets to it skip the tunnel, if they do.
    #[inline(always)]
    pub(crate) fn skipping_tunnel(self, skips: bool) -> Self {
        let flag = if skips { ipcache_flag::SKIP_TUNNEL } else { 0 };
        Self(self.0 | u64::from(flag) << Self::FLAGS_SHIFT)
    }

    /// True if packets to it are encapsulated: those of a connection that came by the tunnel in any case.
    #[inline(always)]
    pub(crate) fn is_behind_tunnel(self, from_tunnel: bool) -> bool {
        is_tunnelled((self.0 >> Self::FLAGS_SHIFT) as u8, from_tunnel)
    }
}

/// True if packets to an address with these [`ipcache_flag`] bits are encapsulated.
#[inline(always)]
pub(crate) fn is_tunnelled(flags: u8, from_tunnel: bool) -> bool {
    enabled!(tunnel)
        && flags & ipcache_flag::HAS_TUNNEL_ENDPOINT != 0
        && (from_tunnel || flags & ipcache_flag::SKIP_TUNNEL == 0)
}

/// Returns the identity of a packet's sender: `label` unless it is a placeholder, else the ipcache entry of its source
/// address. An entry "host" is ignored: masqueraded packets of other senders have an address of the host, and
/// packets of the host itself carry that label already.
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

/// Returns the identity of the sender of a packet with the IP header at `offset`: `label` unless that only encodes the
/// packet's path. UNKNOWN and any world become the world of the packet's family if the ipcache has no entry of the
/// source. Packets other than IP keep the label.
#[inline(always)]
pub(crate) fn sender(skb: Skb, label: u32, offset: usize) -> u32 {
    match skb.protocol() {
        ETH_IPV4 if enabled!(enable_ipv4) => sender_of::<V4>(skb, label, offset),
        ETH_IPV6 if enabled!(enable_ipv6) => sender_of::<V6>(skb, label, offset),
        _ => label,
    }
}

/// As [`sender`], for a packet of one family.
#[inline(always)]
pub(crate) fn sender_of<F: Family>(skb: Skb, label: u32, offset: usize) -> u32 {
    let label = if label == identity::UNKNOWN || is_world(label) { F::world() } else { label };
    match skb.pull_header::<F::Header>(offset) {
        // SAFETY: `pull_header` checked the bounds; nothing writes the packet while this borrow is used.
        Some(header) => resolve_source::<F>(label, F::source(unsafe { &*header })),
        None => label,
    }
}

/// True for the identities of the world.
#[inline(always)]
pub(crate) fn is_world(label: u32) -> bool {
    matches!(label, identity::WORLD | identity::WORLD_IPV4 | identity::WORLD_IPV6)
}

/// True for identities of nodes other than this one: with the API server on it, with labels of its own, or without.
#[inline(always)]
pub(crate) fn is_remote_node(label: u32) -> bool {
    const REMOTE_NODE_SCOPE: u32 = 2;
    matches!(label, identity::REMOTE_NODE | identity::KUBE_APISERVER) || label >> 24 == REMOTE_NODE_SCOPE
}

/// True for identities that encode a packet's path instead of its sender. The ingress proxy's does not.
#[inline(always)]
fn is_reserved(label: u32) -> bool {
    label < identity::UNMANAGED || is_world(label) || is_remote_node(label)
}
