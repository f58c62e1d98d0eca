//! The agent's own mappings: the world, and the addresses of its host.

use std::collections::BTreeMap;
use std::net::IpAddr;

use datapath_abi::identity;
use ipnetwork::IpNetwork;

use crate::entry::{Location, Mapping};

/// The input of the seeds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Host {
    /// The node's own IPv4 and IPv6 address.
    pub node: [Option<IpAddr>; 2],
    /// The router's addresses (cilium_host).
    pub router: [Option<IpAddr>; 2],
    /// All addresses of the node's interfaces.
    pub addresses: Vec<IpAddr>,
    /// Whether IPv4 and IPv6 are enabled.
    pub enabled: [bool; 2],
}

/// Returns the mappings of host and world. The world is one identity on a node with one family, and one per family on a
/// node with both.
pub fn seeds(host: &Host) -> BTreeMap<IpNetwork, Mapping> {
    let mut seeds = BTreeMap::new();
    let everything = [("0.0.0.0/0", identity::WORLD_IPV4), ("::/0", identity::WORLD_IPV6)];
    let dual = host.enabled == [true, true];
    for ((prefix, of_family), enabled) in everything.into_iter().zip(host.enabled) {
        if let (true, Ok(prefix)) = (enabled, prefix.parse()) {
            let world = if dual { of_family } else { identity::WORLD };
            seeds.insert(prefix, Mapping::identity(world));
        }
    }
    let on = |address: &IpAddr| host.enabled[usize::from(address.is_ipv6())];
    let usable = |address: &IpAddr| on(address) && !address.is_loopback() && !address.is_multicast();
    for &address in host.addresses.iter().filter(|address| usable(address)) {
        seeds.insert(IpNetwork::from(address), Mapping::identity(identity::HOST));
    }
    for (router, node) in host.router.into_iter().zip(host.node) {
        if let Some(router) = router.filter(on) {
            let at = Location { host_ip: node, ..Location::default() };
            let mapping = Mapping::identity(identity::HOST).at(at);
            seeds.insert(IpNetwork::from(router), mapping);
        }
    }
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn flat(host: &Host) -> Vec<(String, u32, bool)> {
        let seeds = seeds(host);
        seeds.into_iter().map(|(p, m)| (p.to_string(), m.identity, m.host_ip().is_some())).collect()
    }

    #[test]
    fn one_family_has_one_world() {
        let host = Host {
            node: [Some(ip("10.99.0.1")), None],
            router: [Some(ip("10.244.71.14")), None],
            addresses: vec![ip("10.99.0.1"), ip("127.0.0.1"), ip("fe80::1")],
            enabled: [true, false],
        };
        let expected = [
            ("0.0.0.0/0".to_owned(), 2, false),
            ("10.99.0.1/32".to_owned(), 1, false),
            ("10.244.71.14/32".to_owned(), 1, true),
        ];
        assert_eq!(flat(&host), expected);
    }

    #[test]
    fn two_families_have_two_worlds() {
        let host = Host { enabled: [true, true], ..Host::default() };
        assert_eq!(flat(&host), [("0.0.0.0/0".to_owned(), 9, false), ("::/0".to_owned(), 10, false)]);
    }
}
