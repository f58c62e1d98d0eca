//! The addresses of a node that are probed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// A node with its probed addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Name of the node, with that of its cluster.
    pub(crate) name: Arc<str>,
    pub(crate) local: bool,
    /// Its own addresses, the primary one first.
    pub(crate) host: Vec<IpAddr>,
    /// The addresses of its health endpoint, the primary one first.
    pub(crate) endpoint: Vec<IpAddr>,
}

/// An address of a node. Two nodes may claim the same address: each has results of its own.
pub(crate) type Key = (Arc<str>, IpAddr);

impl Target {
    /// Returns the keys of the node's own addresses, and of those of its health endpoint that `served` has.
    pub(crate) fn served(&self, served: &[IpAddr]) -> Vec<Key> {
        let endpoint = self.endpoint.iter().filter(|ip| served.contains(ip));
        self.host.iter().chain(endpoint).map(|ip| (self.name.clone(), *ip)).collect()
    }

    /// Returns each address once.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = Vec::new();
        for ip in self.host.iter().chain(&self.endpoint) {
            if !keys.iter().any(|(_, known)| known == ip) {
                keys.push((self.name.clone(), *ip));
            }
        }
        keys
    }
}

/// Returns the addresses of enabled families, IPv4 first, without those that no packet can be sent to.
pub(crate) fn addresses(
    ipv4: Option<Ipv4Addr>,
    ipv6: Option<Ipv6Addr>,
    families: &maps::FamilyConfig,
) -> Vec<IpAddr> {
    let ipv4 = ipv4.filter(|ip| {
        families.enable_ipv4 && !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast()
    });
    let ipv6 = ipv6.filter(|ip| families.enable_ipv6 && !ip.is_unspecified() && !ip.is_multicast());
    ipv4.map(IpAddr::V4).into_iter().chain(ipv6.map(IpAddr::V6)).collect()
}
