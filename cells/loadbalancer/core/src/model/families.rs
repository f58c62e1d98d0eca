//! The IP families of the node.

use std::net::IpAddr;

/// The enabled IP families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Families {
    /// IPv4
    pub v4: bool,
    /// IPv6
    pub v6: bool,
}

impl Families {
    pub(crate) fn has(self, ip: &IpAddr) -> bool {
        if ip.is_ipv4() { self.v4 } else { self.v6 }
    }
}
