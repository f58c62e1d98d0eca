//! The node's addresses and ranges from its devices: pure functions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use devices::{NodeAddress, WILDCARD_DEVICE};
use ipnetwork::{Ipv4Network, Ipv6Network};

use crate::settings::{Choice, IPV6_NODE_PREFIX, Settings};
use crate::{Error, LocalNode};

/// The facts that a node's row is derived from, beside the options.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts<'a> {
    pub(crate) name: String,
    pub(crate) boot_id: String,
    /// Table `node-addresses`.
    pub(crate) addresses: Vec<&'a NodeAddress>,
    /// Router addresses of the previous run.
    pub(crate) router_ipv4: Option<Ipv4Addr>,
    pub(crate) router_ipv6: Option<Ipv6Addr>,
}

/// Derives the node's first row.
pub(crate) fn local_node(settings: &Settings, facts: &Facts<'_>) -> Result<LocalNode, Error> {
    let mut node = LocalNode {
        name: facts.name.clone(),
        cluster: settings.cluster_name.clone(),
        cluster_id: settings.cluster_id,
        boot_id: facts.boot_id.clone(),
        ..LocalNode::default()
    };
    let (ipv4, ipv6) = node_ips(settings, &facts.addresses);
    if settings.enable_ipv6 {
        node.ipv6 = ipv6;
        node.service_loopback_ipv6 = Some(settings.service_loopback_ipv6);
        if let Choice::Set(range) = settings.ipv6_range {
            node.ipv6_alloc_cidr = Some(range);
        }
    }
    if settings.enable_ipv4 {
        node.ipv4 = ipv4;
        node.service_loopback_ipv4 = Some(settings.service_loopback_ipv4);
        node.ipv4_alloc_cidr = match settings.ipv4_range {
            Choice::Set(range) => Some(range),
            Choice::Auto => Some(auto_ipv4(
                ipv4.ok_or(Error::NoAddress {
                    family: "IPv4",
                    option: "ipv4-range or ipv4-node",
                    switch: "enable-ipv4",
                })?,
                node.ipv6_alloc_cidr,
            )),
        };
    }
    if settings.enable_ipv6 && node.ipv6_alloc_cidr.is_none() {
        let seed = match node.ipv4_alloc_cidr {
            Some(range) => range.network(),
            None => ipv6.map(low_bits).ok_or(Error::NoAddress {
                family: "IPv6",
                option: "ipv6-range or ipv6-node",
                switch: "enable-ipv6",
            })?,
        };
        node.ipv6_alloc_cidr = Some(auto_ipv6(settings.ipv6_cluster_base, seed));
    }
    // The range may have changed since the previous run; the router needs an address of the current one.
    let range = node.ipv4_alloc_cidr;
    node.router_ipv4 = facts.router_ipv4.filter(|ip| range.is_some_and(|r| r.contains(*ip)));
    let range = node.ipv6_alloc_cidr;
    node.router_ipv6 = facts.router_ipv6.filter(|ip| range.is_some_and(|r| r.contains(*ip)));
    Ok(node)
}

/// Returns the node's own addresses: those of the options, else the best of its devices.
pub(crate) fn node_ips(
    settings: &Settings,
    addresses: &[&NodeAddress],
) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
    let best = addresses.iter().filter(|a| a.device_name == WILDCARD_DEVICE);
    let (mut v4, mut v6) = (None, None);
    for address in best {
        match address.addr {
            IpAddr::V4(ip) if !ip.is_loopback() => v4 = Some(ip),
            IpAddr::V6(ip) if !ip.is_loopback() && !ip.is_unicast_link_local() => v6 = Some(ip),
            _ => {}
        }
    }
    let v4 = match settings.ipv4_node {
        Choice::Set(ip) => Some(ip),
        Choice::Auto => v4,
    };
    let v6 = match settings.ipv6_node {
        Choice::Set(ip) => Some(ip),
        Choice::Auto => v6,
    };
    (v4.filter(|_| settings.enable_ipv4), v6.filter(|_| settings.enable_ipv6))
}

/// Returns `10.X.0.0/16`, where X is octet 11 of the configured IPv6 range, else the last octet of the node's address.
fn auto_ipv4(node: Ipv4Addr, ipv6_range: Option<Ipv6Network>) -> Ipv4Network {
    let octet = match ipv6_range {
        Some(range) => range.network().octets()[11],
        None => node.octets()[3],
    };
    Ipv4Network::new([10, octet, 0, 0].into(), 16).expect("16 is a valid length")
}

/// Returns the cluster's prefix followed by the four octets of the IPv4 range.
fn auto_ipv6(base: Ipv6Network, seed: Ipv4Addr) -> Ipv6Network {
    let mut octets = base.network().octets();
    octets[8..12].copy_from_slice(&seed.octets());
    Ipv6Network::new(octets.into(), IPV6_NODE_PREFIX).expect("96 is a valid length")
}

/// Returns the last 32 bits of an address, for nodes without IPv4.
fn low_bits(ip: Ipv6Addr) -> Ipv4Addr {
    let octets = ip.octets();
    [octets[12], octets[13], octets[14], octets[15]].into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalNodeConfig;

    fn settings(change: impl FnOnce(&mut LocalNodeConfig), v4: bool, v6: bool) -> Settings {
        let mut config = LocalNodeConfig::default();
        change(&mut config);
        Settings::new(&config, v4, v6).unwrap()
    }

    fn address(text: &str, device: &str) -> NodeAddress {
        NodeAddress {
            addr: text.parse().unwrap(),
            node_port: false,
            primary: true,
            device_name: device.into(),
        }
    }

    fn facts(addresses: &[NodeAddress]) -> Facts<'_> {
        Facts { name: "n".into(), addresses: addresses.iter().collect(), ..Facts::default() }
    }

    #[test]
    fn automatic_ranges_are_those_of_cilium() {
        let found = [address("192.168.7.44", "*"), address("fd00::5", "*"), address("1.1.1.1", "eth0")];
        let node = local_node(&settings(|_| {}, true, true), &facts(&found)).unwrap();
        assert_eq!(node.ipv4, Some([192, 168, 7, 44].into()));
        assert_eq!(node.ipv6, Some("fd00::5".parse().unwrap()));
        assert_eq!(node.ipv4_alloc_cidr, Some("10.44.0.0/16".parse().unwrap()));
        assert_eq!(node.ipv6_alloc_cidr, Some("f00d::a2c:0:0:0/96".parse().unwrap()));

        let given = settings(|c| c.ipv4_range = "10.244.0.0/16".into(), true, true);
        let node = local_node(&given, &facts(&found)).unwrap();
        assert_eq!(node.ipv6_alloc_cidr, Some("f00d::af4:0:0:0/96".parse().unwrap()));

        let only6 = local_node(&settings(|_| {}, false, true), &facts(&found)).unwrap();
        assert_eq!((only6.ipv4, only6.ipv4_alloc_cidr), (None, None));
        assert_eq!(only6.ipv6_alloc_cidr, Some("f00d::5:0:0/96".parse().unwrap()));
    }

    #[test]
    fn a_node_without_address_is_an_error_unless_the_range_is_configured() {
        let lonely = [address("127.0.0.1", "*")];
        let error = local_node(&settings(|_| {}, true, false), &facts(&lonely)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no IPv4 address found on this node: add one to a device, set ipv4-range or ipv4-node, or set enable-ipv4=false"
        );
        let given = settings(|c| c.ipv4_range = "10.1.0.0/16".into(), true, true);
        let node = local_node(&given, &facts(&lonely)).unwrap();
        assert_eq!((node.ipv4, node.ipv6), (None, None));
        assert!(node.ipv6_alloc_cidr.is_some());
    }

    #[test]
    fn a_router_outside_the_range_is_dropped() {
        let given = settings(|c| c.ipv4_range = "10.1.0.0/16".into(), true, false);
        let with = |router: [u8; 4]| Facts { router_ipv4: Some(router.into()), ..facts(&[]) };
        let node = local_node(&given, &with([10, 1, 3, 4])).unwrap();
        assert_eq!(node.router_ipv4, Some([10, 1, 3, 4].into()));
        let node = local_node(&given, &with([10, 2, 3, 4])).unwrap();
        assert_eq!(node.router_ipv4, None);
    }
}
