//! The ipcache: identities of addresses.

use crate::address::{FAMILY_V4, FAMILY_V6, ipv4_from_word, ipv4_word, ipv6_from_words, ipv6_words};
use crate::pod::layout;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Key of `cilium_ipcache_v2` (LPM_TRIE, 24 bytes): a prefix.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct IpcacheKey {
    /// [`Self::STATIC_BITS`] plus the bits of the prefix.
    pub prefixlen: u32,
    /// Cluster id; zero in the own cluster.
    pub cluster_id: u16,
    /// Zero.
    pub pad1: u8,
    /// [`FAMILY_V4`] or [`FAMILY_V6`].
    pub family: u8,
    /// IPv4 address in the first word, or IPv6 address; as on the wire.
    pub address: [u32; 4],
}
layout!(IpcacheKey, 24, { prefixlen: 0, cluster_id: 4, pad1: 6, family: 7, address: 8 });

impl IpcacheKey {
    /// Bits of the key before the address, always part of the match.
    pub const STATIC_BITS: u32 = 32;

    /// Returns the key of an IPv4 prefix.
    #[inline(always)]
    pub const fn v4(ip: Ipv4Addr, bits: u8) -> Self {
        let address = [ipv4_word(ip), 0, 0, 0];
        Self {
            prefixlen: Self::STATIC_BITS + bits as u32,
            cluster_id: 0,
            pad1: 0,
            family: FAMILY_V4,
            address,
        }
    }

    /// Returns the key of an IPv6 prefix.
    #[inline(always)]
    pub const fn v6(ip: Ipv6Addr, bits: u8) -> Self {
        let address = ipv6_words(ip);
        Self {
            prefixlen: Self::STATIC_BITS + bits as u32,
            cluster_id: 0,
            pad1: 0,
            family: FAMILY_V6,
            address,
        }
    }

    /// Returns the key of a prefix of either family.
    pub const fn new(ip: IpAddr, bits: u8) -> Self {
        match ip {
            IpAddr::V4(ip) => Self::v4(ip, bits),
            IpAddr::V6(ip) => Self::v6(ip, bits),
        }
    }

    /// Returns the address, or `None` for an entry of an unknown family.
    pub fn ip(&self) -> Option<IpAddr> {
        match self.family {
            FAMILY_V4 => Some(ipv4_from_word(self.address[0]).into()),
            FAMILY_V6 => Some(ipv6_from_words(self.address).into()),
            _ => None,
        }
    }

    /// Returns the length of the prefix in bits.
    pub const fn bits(&self) -> u32 {
        self.prefixlen.saturating_sub(Self::STATIC_BITS)
    }
}

/// Value of `cilium_ipcache_v2` (24 bytes): identity and tunnel endpoint of a prefix.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct RemoteEndpointInfo {
    /// Security identity.
    pub sec_identity: u32,
    /// Tunnel endpoint: IPv4 in the first word, IPv6 if [`ipcache_flag::IPV6_TUNNEL_ENDPOINT`] is set.
    pub tunnel_endpoint: [u32; 4],
    /// Zero.
    pub pad: u16,
    /// Encryption key index.
    pub key: u8,
    /// [`ipcache_flag`] bits.
    pub flags: u8,
}
layout!(RemoteEndpointInfo, 24, { sec_identity: 0, tunnel_endpoint: 4, pad: 20, key: 22, flags: 23 });

/// Bits of [`RemoteEndpointInfo::flags`] (constants: ipcache_flag).
pub mod ipcache_flag {
    /// Bypass the tunnel.
    pub const SKIP_TUNNEL: u8 = 1;
    /// The tunnel endpoint is set.
    pub const HAS_TUNNEL_ENDPOINT: u8 = 2;
    /// The tunnel endpoint is an IPv6 address.
    pub const IPV6_TUNNEL_ENDPOINT: u8 = 4;
    /// The prefix belongs to another cluster.
    pub const REMOTE_CLUSTER: u8 = 8;

    /// The names that `cilium-dbg bpf ipcache list` prints, in the order of the bits.
    pub const LABELS: [(u8, &str); 4] = [
        (SKIP_TUNNEL, "skiptunnel"),
        (HAS_TUNNEL_ENDPOINT, "hastunnel"),
        (IPV6_TUNNEL_ENDPOINT, "ipv6tunnel"),
        (REMOTE_CLUSTER, "remotecluster"),
    ];
}
