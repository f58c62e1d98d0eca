//! Nodes and devices.

use crate::address::{FAMILY_V4, FAMILY_V6, ipv4_from_word, ipv4_word, ipv6_from_words, ipv6_words};
use crate::pod::layout;
use core::net::IpAddr;

/// Key of `cilium_node_map_v2` (HASH, 20 bytes): an address of a node.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct NodeKey {
    /// Zero.
    pub pad1: u16,
    /// Zero.
    pub pad2: u8,
    /// [`FAMILY_V4`] or [`FAMILY_V6`].
    pub family: u8,
    /// IPv4 address in the first word, or IPv6 address; as on the wire.
    pub address: [u32; 4],
}
layout!(NodeKey, 20, { pad1: 0, pad2: 2, family: 3, address: 4 });

impl NodeKey {
    /// Returns the address, or `None` for an entry of an unknown family.
    pub fn ip(&self) -> Option<IpAddr> {
        match self.family {
            FAMILY_V4 => Some(ipv4_from_word(self.address[0]).into()),
            FAMILY_V6 => Some(ipv6_from_words(self.address).into()),
            _ => None,
        }
    }
}

impl From<IpAddr> for NodeKey {
    fn from(ip: IpAddr) -> Self {
        let (family, address) = match ip {
            IpAddr::V4(ip) => (FAMILY_V4, [ipv4_word(ip), 0, 0, 0]),
            IpAddr::V6(ip) => (FAMILY_V6, ipv6_words(ip)),
        };
        Self { pad1: 0, pad2: 0, family, address }
    }
}

/// Value of `cilium_node_map_v2` (4 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct NodeValue {
    /// Node id.
    pub id: u16,
    /// Encryption key index.
    pub spi: u8,
    /// Zero.
    pub pad: u8,
}
layout!(NodeValue, 4, { id: 0, spi: 2, pad: 3 });

/// Value of `cilium_devices` (HASH by ifindex, 16 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct DeviceValue {
    /// MAC address, see [`mac_word`](crate::mac_word); zero for a device without one.
    pub mac: u64,
    /// Bit 0: the device has no Ethernet header.
    pub l3: u8,
    /// Zero.
    pub pad1: u8,
    /// Zero.
    pub pad2: u16,
    /// Zero.
    pub pad3: u32,
}
layout!(DeviceValue, 16, { mac: 0, l3: 8, pad1: 9, pad2: 10, pad3: 12 });
