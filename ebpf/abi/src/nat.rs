//! Translations of source addresses: the rows of `cilium_snat_v4_external` and `cilium_snat_v6_external`, masquerade
//! addresses of devices, and ranges that are not masqueraded.

use crate::conntrack::{CtTuple, CtTuple4, CtTuple6};
use crate::pod::layout;

/// Key of the NAT maps: the tuple of a packet, addresses and ports in the packet's order. With flag
/// [`OUT`](crate::tuple_flag::OUT) that of the packet before the translation, with [`IN`](crate::tuple_flag::IN) that of
/// its reply.
pub type NatKey<A> = CtTuple<A>;
/// Key of cilium_snat_v4_external.
pub type NatKey4 = CtTuple4;
/// Key of cilium_snat_v6_external.
pub type NatKey6 = CtTuple6;

/// Value of the NAT maps (40 or 56 bytes).
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct NatEntry<A: Copy, const PAD: usize> {
    /// Creation time on the clock of connections.
    pub created: u64,
    /// 1 if the row lives as long as a connection tracking entry made with it, which no other program makes.
    pub needs_ct: u64,
    /// Zero.
    pub pad1: u64,
    /// Zero.
    pub pad2: u64,
    /// The new source address, or the new destination of a reply.
    pub address: A,
    /// Its port as on the wire.
    pub port: u16,
    /// Zero.
    pub pad: [u8; PAD],
}

/// Value of cilium_snat_v4_external.
pub type NatEntry4 = NatEntry<u32, 2>;
/// Value of cilium_snat_v6_external.
pub type NatEntry6 = NatEntry<[u32; 4], 6>;
layout!(NatEntry4, 40, { created: 0, needs_ct: 8, pad1: 16, pad2: 24, address: 32, port: 36, pad: 38 });
layout!(NatEntry6, 56, { created: 0, needs_ct: 8, pad1: 16, pad2: 24, address: 32, port: 48, pad: 50 });

/// Key of `ep_masquerade` for the node: its direct-routing addresses, the sources of packets to backends of services on
/// other nodes. No device has this index.
pub const DIRECT_ROUTING: u32 = 0;

/// Value of `ep_masquerade` (HASH, 64 bytes) by a device's index: the addresses of packets that leave the cluster by
/// the device. Addresses as on the wire.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct MasqueradeAddresses {
    /// The IPv4 address; 0 if the device and the node have none.
    pub ipv4: u32,
    /// The IPv4 range of which destinations are not masqueraded. With an address outside of its mask it has none.
    pub excluded_ipv4: u32,
    /// The mask of that range.
    pub excluded_ipv4_mask: u32,
    /// Zero.
    pub pad: u32,
    /// The IPv6 address.
    pub ipv6: [u32; 4],
    /// The IPv6 range.
    pub excluded_ipv6: [u32; 4],
    /// The mask of that range.
    pub excluded_ipv6_mask: [u32; 4],
}
layout!(MasqueradeAddresses, 64, {
    ipv4: 0, excluded_ipv4: 4, excluded_ipv4_mask: 8, pad: 12, ipv6: 16, excluded_ipv6: 32, excluded_ipv6_mask: 48,
});

/// Key of `cilium_ipmasq_v4` and `cilium_ipmasq_v6` (LPM_TRIE, 8 or 20 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct IpMasqKey<A: Copy> {
    /// Bits of the range.
    pub prefixlen: u32,
    /// Its address as on the wire.
    pub address: A,
}

/// Key of cilium_ipmasq_v4.
pub type IpMasqKey4 = IpMasqKey<u32>;
/// Key of cilium_ipmasq_v6.
pub type IpMasqKey6 = IpMasqKey<[u32; 4]>;
/// Key of cilium_cidr_v4_dyn and cilium_cidr_v4_fix.
pub type PrefilterKey4 = IpMasqKey<u32>;
/// Key of cilium_cidr_v6_dyn and cilium_cidr_v6_fix.
pub type PrefilterKey6 = IpMasqKey<[u32; 4]>;
layout!(IpMasqKey4, 8, { prefixlen: 0, address: 4 });
layout!(IpMasqKey6, 20, { prefixlen: 0, address: 4 });
