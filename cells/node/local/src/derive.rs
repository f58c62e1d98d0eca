//! The node's addresses and ranges from its devices: pure functions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use devices::{NodeAddress, WILDCARD_DEVICE};
use ipnetwork::{Ipv4Network, Ipv6Network};

use crate::previous::Previous;
use crate::settings::{Choice, IPV6_NODE_PREFIX, Settings};
use crate::{AddressSource, Error, LocalNode};

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
    /// The facts of the cluster's objects in the previous run, if pod ranges come from the cluster.
    pub(crate) cluster: Option<Previous>,
}

/// Why a range is missing when the node's row is made.
const NOT_READ: &str = "the cluster's objects are not read yet";

/// Derives the node's first row. If pod ranges come from the cluster they are those of the previous run, else none yet.
pub(crate) fn local_node(settings: &Settings, facts: &Facts<'_>) -> Result<LocalNode, Error> {
    let mut node = LocalNode {
        name: facts.name.clone(),
        cluster: settings.cluster_name.clone(),
        cluster_id: settings.cluster_id,
        boot_id: facts.boot_id.clone(),
        ..LocalNode::default()
    };
    let (ipv4, ipv6) = node_ips(settings, &facts.addresses);
    (node.ipv4, node.ipv6) = (ipv4, ipv6);
    if settings.ipv4_node != Choice::Auto {
        node.ipv4_source = AddressSource::Option;
    }
    if settings.ipv6_node != Choice::Auto {
        node.ipv6_source = AddressSource::Option;
    }
    node.service_loopback_ipv4 = settings.enable_ipv4.then_some(settings.service_loopback_ipv4);
    node.service_loopback_ipv6 = settings.enable_ipv6.then_some(settings.service_loopback_ipv6);
    configured_ranges(settings, &mut node);
    match &facts.cluster {
        Some(previous) => known_before(settings, &mut node, previous),
        None => automatic_ranges(settings, &mut node)?,
    }
    // The range may have changed since the previous run; the router needs an address of the one in force. While no range
    // is known the datapath stays as the previous run left it.
    let valid =
        |ip: &Ipv4Addr| node.ipv4_alloc_cidr.is_none() || node.ipv4_alloc_cidrs().any(|r| r.contains(*ip));
    let router_ipv4 = facts.router_ipv4.filter(|_| settings.enable_ipv4).filter(valid);
    let valid =
        |ip: &Ipv6Addr| node.ipv6_alloc_cidr.is_none() || node.ipv6_alloc_cidrs().any(|r| r.contains(*ip));
    let router_ipv6 = facts.router_ipv6.filter(|_| settings.enable_ipv6).filter(valid);
    node.router_ipv4 = settings.local_router_ipv4.or(router_ipv4);
    node.router_ipv6 = settings.local_router_ipv6.or(router_ipv6);
    Ok(node)
}

/// Sets the ranges that options name.
fn configured_ranges(settings: &Settings, node: &mut LocalNode) {
    if let (true, Choice::Set(range)) = (settings.enable_ipv4, settings.ipv4_range) {
        node.ipv4_alloc_cidr = Some(range);
    }
    if let (true, Choice::Set(range)) = (settings.enable_ipv6, settings.ipv6_range) {
        node.ipv6_alloc_cidr = Some(range);
    }
}

/// Sets addresses and ranges that the cluster's objects had in the previous run, where no option names others.
fn known_before(settings: &Settings, node: &mut LocalNode, previous: &Previous) {
    if settings.enable_ipv4 {
        if let (Some(ip), AddressSource::Device) = (previous.ipv4, node.ipv4_source) {
            (node.ipv4, node.ipv4_source) = (Some(ip), AddressSource::Node);
        }
        if node.ipv4_alloc_cidr.is_none() {
            node.set_ipv4_alloc_cidrs(&previous.ipv4_cidrs);
        }
        node.ipv4_cidr_wait = node.ipv4_alloc_cidr.is_none().then(|| NOT_READ.to_owned());
    }
    if settings.enable_ipv6 {
        if let (Some(ip), AddressSource::Device) = (previous.ipv6, node.ipv6_source) {
            (node.ipv6, node.ipv6_source) = (Some(ip), AddressSource::Node);
        }
        if node.ipv6_alloc_cidr.is_none() {
            node.set_ipv6_alloc_cidrs(&previous.ipv6_cidrs);
        }
        node.ipv6_cidr_wait = node.ipv6_alloc_cidr.is_none().then(|| NOT_READ.to_owned());
    }
    node.withdrawn_alloc_cidrs.clone_from(&previous.withdrawn);
    node.pools.clone_from(&previous.pools);
    node.ingress_ipv4 = previous.ingress_ipv4.filter(|_| settings.enable_ipv4);
    node.ingress_ipv6 = previous.ingress_ipv6.filter(|_| settings.enable_ipv6);
}

/// Derives the missing range of each enabled family from the node's address.
pub(crate) fn automatic_ranges(settings: &Settings, node: &mut LocalNode) -> Result<(), Error> {
    if settings.enable_ipv4 && node.ipv4_alloc_cidr.is_none() {
        let ip = node.ipv4.ok_or(Error::NoAddress {
            family: "IPv4",
            option: "ipv4-range or ipv4-node",
            switch: "enable-ipv4",
        })?;
        node.ipv4_alloc_cidr = Some(auto_ipv4(ip, node.ipv6_alloc_cidr));
    }
    (node.ipv4_cidr_wait, node.ipv6_cidr_wait) = (None, None);
    if settings.enable_ipv6 && node.ipv6_alloc_cidr.is_none() {
        let seed = match node.ipv4_alloc_cidr {
            Some(range) => range.network(),
            None => node.ipv6.map(low_bits).ok_or(Error::NoAddress {
                family: "IPv6",
                option: "ipv6-range or ipv6-node",
                switch: "enable-ipv6",
            })?,
        };
        node.ipv6_alloc_cidr = Some(auto_ipv6(settings.ipv6_cluster_base, seed));
    }
    Ok(())
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
    fn ranges_of_the_cluster_are_those_of_the_previous_run_until_its_objects_are_known() {
        let found = [address("192.168.7.44", "*"), address("fd00::5", "*")];
        let first = Facts {
            cluster: Some(Previous::default()),
            router_ipv4: Some([10, 2, 3, 4].into()),
            ..facts(&found)
        };
        let node = local_node(&settings(|_| {}, true, true), &first).unwrap();
        assert_eq!((node.ipv4_alloc_cidr, node.ipv6_alloc_cidr), (None, None), "nothing is made up");
        assert_eq!(node.ipv6_cidr_wait.as_deref(), Some(NOT_READ));
        assert_eq!(
            (node.ipv4, node.router_ipv4),
            (Some([192, 168, 7, 44].into()), Some([10, 2, 3, 4].into()))
        );

        let of_node = LocalNode {
            ipv4: Some([192, 0, 2, 1].into()),
            ipv4_source: AddressSource::Node,
            ipv4_alloc_cidr: Some("10.9.1.0/24".parse().unwrap()),
            ipv4_secondary_alloc_cidrs: vec!["10.2.3.0/24".parse().unwrap()],
            ..LocalNode::default()
        };
        let again = Facts { cluster: Some(Previous::new(&of_node)), ..first };
        let node = local_node(&settings(|_| {}, true, true), &again).unwrap();
        assert_eq!((node.ipv4, node.ipv4_source), (of_node.ipv4, AddressSource::Node));
        assert!(node.ipv4_alloc_cidrs().eq(of_node.ipv4_alloc_cidrs()));
        assert_eq!(node.router_ipv4, Some([10, 2, 3, 4].into()), "a router of the second range is valid");
        let given = settings(
            |c| {
                c.ipv4_range = "10.1.0.0/16".into();
                c.ipv4_node = "192.0.2.9".into();
                c.local_router_ipv4 = "169.254.23.0".into();
            },
            true,
            false,
        );
        let node = local_node(&given, &again).unwrap();
        assert_eq!((node.ipv4, node.ipv4_source), (Some([192, 0, 2, 9].into()), AddressSource::Option));
        assert!(node.ipv4_alloc_cidrs().eq(["10.1.0.0/16".parse().unwrap()]), "options come first");
        assert_eq!(node.router_ipv4, Some([169, 254, 23, 0].into()));
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
