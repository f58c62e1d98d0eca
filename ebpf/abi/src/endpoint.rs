//! Endpoints: Cilium's cilium_lxc, and our settings entries by endpoint id.

use crate::address::{FAMILY_V4, FAMILY_V6, ipv4_from_word, ipv4_word, ipv6_from_words, ipv6_words};
use crate::pod::layout;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Key of `cilium_lxc` (HASH, 20 bytes): a local address.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct EndpointKey {
    /// IPv4 address in the first word, or IPv6 address; as on the wire.
    pub address: [u32; 4],
    /// [`FAMILY_V4`] or [`FAMILY_V6`].
    pub family: u8,
    /// Always zero for local addresses.
    pub key: u8,
    /// Cluster id; zero in the own cluster.
    pub cluster_id: u16,
}
layout!(EndpointKey, 20, { address: 0, family: 16, key: 17, cluster_id: 18 });

impl EndpointKey {
    /// Returns the key of an IPv4 address.
    #[inline(always)]
    pub const fn v4(ip: Ipv4Addr) -> Self {
        Self { address: [ipv4_word(ip), 0, 0, 0], family: FAMILY_V4, key: 0, cluster_id: 0 }
    }

    /// Returns the key of an IPv6 address.
    #[inline(always)]
    pub const fn v6(ip: Ipv6Addr) -> Self {
        Self { address: ipv6_words(ip), family: FAMILY_V6, key: 0, cluster_id: 0 }
    }

    /// Returns the address, or `None` for an entry of an unknown family.
    pub fn ip(&self) -> Option<IpAddr> {
        match self.family {
            FAMILY_V4 => Some(ipv4_from_word(self.address[0]).into()),
            FAMILY_V6 => Some(ipv6_from_words(self.address).into()),
            _ => None,
        }
    }
}

impl From<IpAddr> for EndpointKey {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self::v4(ip),
            IpAddr::V6(ip) => Self::v6(ip),
        }
    }
}

/// Value of `cilium_lxc` (48 bytes): the endpoint of a local address. Entries of the host have flags
/// [`lxc_flag::HOST`] and no other value.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct EndpointInfo {
    /// The host-side interface.
    pub ifindex: u32,
    /// Zero.
    pub unused: u16,
    /// Endpoint id.
    pub lxc_id: u16,
    /// [`lxc_flag`] bits.
    pub flags: u32,
    /// FIB table for traffic of this endpoint, or zero.
    pub rt_info: u32,
    /// MAC inside the pod, see [`mac_word`](crate::mac_word).
    pub mac: u64,
    /// MAC of the host-side interface.
    pub node_mac: u64,
    /// Security identity.
    pub sec_id: u32,
    /// Interface of a secondary address, or zero.
    pub parent_ifindex: u32,
    /// Zero.
    pub pad: [u32; 2],
}
layout!(EndpointInfo, 48, {
    ifindex: 0, unused: 4, lxc_id: 6, flags: 8, rt_info: 12, mac: 16, node_mac: 24, sec_id: 32, parent_ifindex: 36,
    pad: 40,
});

/// Bits of [`EndpointInfo::flags`] (constants: lxc_flag).
pub mod lxc_flag {
    /// An address of the host itself.
    pub const HOST: u32 = 1;
    /// The endpoint lives in the host's network namespace.
    pub const AT_HOST_NETNS: u32 = 2;
    /// Not masqueraded, IPv4.
    pub const SKIP_MASQUERADE_V4: u32 = 4;
    /// Not masqueraded, IPv6.
    pub const SKIP_MASQUERADE_V6: u32 = 8;
    /// Bits for delivery to the host's stack.
    pub const HOST_DELIVERY: u32 = HOST | AT_HOST_NETNS;
}

/// Entries of the arrays `ep_config`, `ep_by_ifindex` (endpoint ids and small interface indexes are 16 bit).
pub const EP_CONFIG_ENTRIES: u32 = 65536;

/// Value of our own map `ep_config` (ARRAY by endpoint id, 64 bytes): the settings of an endpoint for the shared
/// programs. All zero if there is no such endpoint: its packets are dropped with 203.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct EndpointConfig {
    /// Endpoint id, equal to the entry's index.
    pub id: u32,
    /// Security identity.
    pub identity: u32,
    /// The host-side interface; packets from another interface are not attributed to this endpoint.
    pub ifindex: u32,
    /// [`ep_flag`] bits.
    pub flags: u32,
    /// IPv4 address as on the wire, or zero.
    pub ipv4: u32,
    /// Slot of the endpoint's policy map in `ep_policies`.
    pub policy_slot: u32,
    /// IPv6 address as on the wire, or zero.
    pub ipv6: [u32; 4],
    /// MAC inside the pod.
    pub mac: u64,
    /// MAC of the host-side interface.
    pub node_mac: u64,
    /// Cookie of the pod's network namespace; zero if it is unknown or does not fit, as no kernel makes so many.
    pub netns_cookie: u32,
    /// Device by which the pod's peers reach it, or zero ([`EndpointInfo::parent_ifindex`]).
    pub parent_ifindex: u32,
}
layout!(EndpointConfig, 64, {
    id: 0, identity: 4, ifindex: 8, flags: 12, ipv4: 16, policy_slot: 20, ipv6: 24, mac: 40, node_mac: 48,
    netns_cookie: 56, parent_ifindex: 60,
});

/// Bits of [`EndpointConfig::flags`].
pub mod ep_flag {
    /// The entry is in use. Without it packets of the endpoint are dropped with 203.
    pub const LIVE: u32 = 1;
    /// Packets must carry one of the endpoint's own source addresses (else drop 132).
    pub const SOURCE_CHECK: u32 = 2;
    /// No drop events of this endpoint's programs, independent of the node's switch.
    pub const NO_DROP_NOTIFY: u32 = 4;
    /// No trace events of this endpoint's programs, independent of the node's switch.
    pub const NO_TRACE_NOTIFY: u32 = 8;
    /// No policy verdict events of this endpoint, independent of the node's switch.
    pub const NO_POLICY_VERDICT_NOTIFY: u32 = 16;
    /// Policy allows and reports packets that it would drop (`PolicyAuditMode`).
    pub const POLICY_AUDIT: u32 = 32;

    /// Shift of the endpoint's aggregation level, which has three bits.
    const AGGREGATION_SHIFT: u32 = 8;
    const AGGREGATION_MASK: u32 = 7;

    /// Returns the bits of a level of [`aggregation`](crate::trace::aggregation). A higher node level takes precedence.
    pub const fn with_aggregation(level: u32) -> u32 {
        (level & AGGREGATION_MASK) << AGGREGATION_SHIFT
    }

    /// Returns the aggregation level in these flags.
    pub const fn aggregation(flags: u32) -> u32 {
        flags >> AGGREGATION_SHIFT & AGGREGATION_MASK
    }
}
