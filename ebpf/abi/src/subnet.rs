//! Subnets whose addresses reach each other without the tunnel.

use crate::address::{FAMILY_V4, FAMILY_V6, ipv4_from_word, ipv4_word, ipv6_from_words, ipv6_words};
use crate::pod::layout;
use core::net::IpAddr;

/// Key of `cilium_subnet_map` (LPM_TRIE, 24 bytes): a prefix.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[cfg_attr(feature = "user", derive(Debug, PartialEq, Eq, Hash))]
pub struct SubnetKey {
    /// [`Self::STATIC_BITS`] plus the bits of the prefix.
    pub prefixlen: u32,
    /// Zero.
    pub pad0: u16,
    /// Zero.
    pub pad1: u8,
    /// [`FAMILY_V4`] or [`FAMILY_V6`].
    pub family: u8,
    /// IPv4 address in the first word, or IPv6 address; as on the wire.
    pub address: [u32; 4],
}
layout!(SubnetKey, 24, { prefixlen: 0, pad0: 4, pad1: 6, family: 7, address: 8 });

impl SubnetKey {
    /// Bits of the key before the address, always part of the match.
    pub const STATIC_BITS: u32 = 32;

    /// Returns the key of a prefix of either family; bits of the address behind the prefix are kept.
    pub const fn new(ip: IpAddr, bits: u8) -> Self {
        let (family, address) = match ip {
            IpAddr::V4(ip) => (FAMILY_V4, [ipv4_word(ip), 0, 0, 0]),
            IpAddr::V6(ip) => (FAMILY_V6, ipv6_words(ip)),
        };
        Self { prefixlen: Self::STATIC_BITS + bits as u32, pad0: 0, pad1: 0, family, address }
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

/// The group of an address in no subnet of the topology.
pub const NO_SUBNET: u32 = 0;
