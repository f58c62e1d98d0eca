//! The row of table `nodes`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnetwork::IpNetwork;
use k8s_tables::StringMap;
use local_node::{AddressType, DEFAULT_CLUSTER, LocalNode};
use serde::Serialize;
use statedb::{Query, TableDisplay, TableSpec};
use tunnel::Family;

use crate::source::NodeSource;

/// A node of the cluster, this one included.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Node {
    /// Name of its cluster.
    pub cluster: Arc<str>,
    /// Its name, unique in the cluster.
    pub name: Arc<str>,
    /// Id of its cluster, 0 for none.
    #[serde(rename = "ClusterID")]
    pub cluster_id: u32,
    /// The source of the row.
    pub source: NodeSource,
    /// Its own addresses and those of its router.
    pub addresses: Vec<NodeAddress>,
    /// The ranges of its pods: the first of each family first.
    #[serde(rename = "PodCIDRs")]
    pub pod_cidrs: Vec<IpNetwork>,
    /// IPv4 address of its health endpoint.
    pub health_ipv4: Option<Ipv4Addr>,
    /// IPv6 address of its health endpoint.
    pub health_ipv6: Option<Ipv6Addr>,
    /// IPv4 address of its ingress.
    pub ingress_ipv4: Option<Ipv4Addr>,
    /// IPv6 address of its ingress.
    pub ingress_ipv6: Option<Ipv6Addr>,
    /// Index of its IPsec key, 0 for none.
    pub encryption_key: u8,
    /// Its WireGuard public key in base64; empty for none.
    pub wireguard_key: Arc<str>,
    /// The id of its kernel's boot.
    #[serde(rename = "BootID")]
    pub boot_id: Arc<str>,
    /// Labels.
    pub labels: StringMap,
    /// Annotations.
    pub annotations: StringMap,
}

/// An address of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct NodeAddress {
    /// Its purpose.
    #[serde(rename = "Type")]
    pub kind: AddressType,
    /// The address.
    #[serde(rename = "IP")]
    pub ip: IpAddr,
}

impl Node {
    /// Returns `name`, or `cluster/name` if the cluster has a configured name.
    #[must_use]
    pub fn full_name(&self) -> String {
        if self.cluster.is_empty() || &*self.cluster == DEFAULT_CLUSTER {
            self.name.to_string()
        } else {
            format!("{}/{}", self.cluster, self.name)
        }
    }

    /// Whether it is the node that the agent runs on.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.source == NodeSource::Local
    }

    /// Returns its own IPv4 address: `InternalIP`, else `ExternalIP`.
    #[must_use]
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.own_address(|ip| match ip {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        })
    }

    /// Returns its own IPv6 address: `InternalIP`, else `ExternalIP`.
    #[must_use]
    pub fn ipv6(&self) -> Option<Ipv6Addr> {
        self.own_address(|ip| match ip {
            IpAddr::V6(ip) => Some(ip),
            IpAddr::V4(_) => None,
        })
    }

    fn own_address<T>(&self, family: impl Fn(IpAddr) -> Option<T>) -> Option<T> {
        let of = |kind| {
            self.addresses.iter().filter(move |address| address.kind == kind).find_map(|a| family(a.ip))
        };
        of(AddressType::InternalIP).or_else(|| of(AddressType::ExternalIP))
    }

    /// Returns its own address of the family that tunnels use.
    #[must_use]
    pub fn tunnel_endpoint(&self, underlay: Family) -> Option<IpAddr> {
        match underlay {
            Family::Ipv4 => self.ipv4().map(IpAddr::V4),
            Family::Ipv6 => self.ipv6().map(IpAddr::V6),
        }
    }

    /// Returns the addresses of its router (`CiliumInternalIP`).
    pub fn router_ips(&self) -> impl Iterator<Item = IpAddr> {
        let routers = self.addresses.iter().filter(|address| address.kind == AddressType::CiliumInternalIP);
        routers.map(|address| address.ip)
    }

    /// Returns all of its addresses: its own, its router's, those of its health endpoint and of its ingress.
    pub(crate) fn all_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let v4 = [self.health_ipv4, self.ingress_ipv4].into_iter().flatten().map(IpAddr::V4);
        let v6 = [self.health_ipv6, self.ingress_ipv6].into_iter().flatten().map(IpAddr::V6);
        self.addresses.iter().map(|address| address.ip).chain(v4).chain(v6)
    }

    /// Queries the node of this name.
    #[must_use]
    pub fn by_name(cluster: &str, name: &str) -> Query<Self> {
        Query::primary((cluster, name))
    }
}

impl From<&LocalNode> for Node {
    fn from(local: &LocalNode) -> Self {
        let strings = |map: &std::collections::BTreeMap<String, String>| {
            map.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
        };
        let addresses = local.addresses().into_iter().map(|(kind, ip)| NodeAddress { kind, ip });
        let ranges = local.ipv4_alloc_cidrs().map(IpNetwork::V4);
        Self {
            cluster: local.cluster.as_str().into(),
            name: local.name.as_str().into(),
            cluster_id: local.cluster_id,
            source: NodeSource::Local,
            addresses: addresses.collect(),
            pod_cidrs: first_of_families(ranges.chain(local.ipv6_alloc_cidrs().map(IpNetwork::V6))),
            health_ipv4: local.health_ipv4,
            health_ipv6: local.health_ipv6,
            ingress_ipv4: local.ingress_ipv4,
            ingress_ipv6: local.ingress_ipv6,
            boot_id: local.boot_id.as_str().into(),
            labels: strings(&local.labels),
            annotations: strings(&local.annotations),
            ..Self::default()
        }
    }
}

/// Sorts ranges so that the first of each family comes first, and keeps the order of the others. Removes duplicates.
pub(crate) fn first_of_families(ranges: impl Iterator<Item = IpNetwork>) -> Vec<IpNetwork> {
    let (mut first, mut others): (Vec<IpNetwork>, Vec<IpNetwork>) = (Vec::new(), Vec::new());
    for range in ranges {
        if first.contains(&range) || others.contains(&range) {
            continue;
        }
        match first.iter().any(|known| known.is_ipv4() == range.is_ipv4()) {
            true => others.push(range),
            false => first.push(range),
        }
    }
    first.append(&mut others);
    first
}

impl TableSpec for Node {
    const NAME: &'static str = "nodes";
    const PRIMARY: &'static str = "name";
    type Key<'a> = (&'a str, &'a str);

    fn key(&self) -> (&str, &str) {
        (&self.cluster, &self.name)
    }
}

impl TableDisplay for Node {
    fn columns() -> &'static [&'static str] {
        &["Name", "Source", "Addresses", "PodCIDRs"]
    }

    fn row(&self) -> Vec<String> {
        let addresses: Vec<String> = self
            .addresses
            .iter()
            .map(|address| format!("{}:{}", address.kind.as_str(), address.ip))
            .collect();
        let ranges: Vec<String> = self.pod_cidrs.iter().map(IpNetwork::to_string).collect();
        vec![self.full_name(), self.source.name().to_owned(), addresses.join(", "), ranges.join(", ")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::node;

    #[test]
    fn internal_addresses_come_before_external_ones() {
        let mut n2 = node("n2", &["192.0.2.2", "2001:db8::2"], &["10.0.2.0/24"]);
        n2.addresses.insert(0, NodeAddress { kind: AddressType::ExternalIP, ip: [198, 51, 100, 2].into() });
        assert_eq!(n2.ipv4(), Some([192, 0, 2, 2].into()));
        assert_eq!(n2.tunnel_endpoint(Family::Ipv6), Some("2001:db8::2".parse().unwrap()));
        n2.addresses.remove(1);
        assert_eq!(n2.ipv4(), Some([198, 51, 100, 2].into()));
        n2.addresses.clear();
        n2.addresses.push(NodeAddress { kind: AddressType::CiliumInternalIP, ip: [10, 0, 2, 1].into() });
        assert_eq!(n2.ipv4(), None, "the router is no tunnel endpoint");
        assert_eq!(n2.router_ips().count(), 1);
    }

    #[test]
    fn the_local_node_is_a_node() {
        let local = LocalNode {
            name: "n1".into(),
            cluster: "red".into(),
            cluster_id: 3,
            ipv4: Some([192, 0, 2, 1].into()),
            router_ipv4: Some([10, 0, 1, 1].into()),
            ipv4_alloc_cidr: Some("10.0.1.0/24".parse().unwrap()),
            ipv4_secondary_alloc_cidrs: vec!["10.0.3.0/24".parse().unwrap()],
            ipv6_alloc_cidr: Some("fd00::/112".parse().unwrap()),
            ..LocalNode::default()
        };
        let node = Node::from(&local);
        assert!(node.is_local());
        assert_eq!((node.full_name().as_str(), node.cluster_id, node.ipv4()), ("red/n1", 3, local.ipv4));
        assert_eq!(node.row()[2], "InternalIP:192.0.2.1, CiliumInternalIP:10.0.1.1");
        assert_eq!(node.row()[3], "10.0.1.0/24, fd00::/112, 10.0.3.0/24");
    }
}
