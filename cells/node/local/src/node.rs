//! The row of table `local-node`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use serde::{Deserialize, Serialize, Serializer};
use statedb::{Index, IndexDef, Query, TableDisplay, TableSpec};

use crate::json::{JsonAddress, JsonCidr, JsonLocal, JsonNode};

/// The name of a cluster without a configured name.
pub const DEFAULT_CLUSTER: &str = "default";

/// The node that the agent runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalNode {
    /// Its name: `K8S_NODE_NAME`, else the host's name.
    pub name: String,
    /// Name of its cluster.
    pub cluster: String,
    /// Id of its cluster, 0 for none.
    pub cluster_id: u32,
    /// Its own IPv4 address (`InternalIP`).
    pub ipv4: Option<Ipv4Addr>,
    /// Its own IPv6 address (`InternalIP`).
    pub ipv6: Option<Ipv6Addr>,
    /// Where the IPv4 address comes from.
    pub ipv4_source: AddressSource,
    /// Where the IPv6 address comes from.
    pub ipv6_source: AddressSource,
    /// Its IPv4 address outside of the cluster (`ExternalIP`), from Kubernetes.
    pub external_ipv4: Option<Ipv4Addr>,
    /// Its IPv6 address outside of the cluster (`ExternalIP`), from Kubernetes.
    pub external_ipv6: Option<Ipv6Addr>,
    /// The range of its pods' IPv4 addresses; the first one if there are several.
    pub ipv4_alloc_cidr: Option<Ipv4Network>,
    /// The range of its pods' IPv6 addresses; the first one if there are several.
    pub ipv6_alloc_cidr: Option<Ipv6Network>,
    /// Further ranges of its pods' IPv4 addresses.
    pub ipv4_secondary_alloc_cidrs: Vec<Ipv4Network>,
    /// Further ranges of its pods' IPv6 addresses.
    pub ipv6_secondary_alloc_cidrs: Vec<Ipv6Network>,
    /// Ranges that the cluster has withdrawn and that pods still have addresses of: they are routed, and nothing new is
    /// allocated from them.
    pub withdrawn_alloc_cidrs: Vec<IpNetwork>,
    /// Its pools, with `ipam=multi-pool`; the ranges of all of them are in the fields above, those of the default pool first.
    pub pools: Vec<NodePool>,
    /// Why the IPv4 range is not known yet; none if it is, or if IPv4 is off.
    pub ipv4_cidr_wait: Option<String>,
    /// Why the IPv6 range is not known yet; none if it is, or if IPv6 is off.
    pub ipv6_cidr_wait: Option<String>,
    /// The pods' IPv4 gateway, the address of `cilium_host` (`CiliumInternalIP`).
    pub router_ipv4: Option<Ipv4Addr>,
    /// The pods' IPv6 gateway (`CiliumInternalIP`).
    pub router_ipv6: Option<Ipv6Addr>,
    /// IPv4 address of the health endpoint.
    pub health_ipv4: Option<Ipv4Addr>,
    /// IPv6 address of the health endpoint.
    pub health_ipv6: Option<Ipv6Addr>,
    /// IPv4 address from which the node's Envoy reaches backends of ingresses (`reserved:ingress`).
    pub ingress_ipv4: Option<Ipv4Addr>,
    /// IPv6 address from which the node's Envoy reaches backends of ingresses.
    pub ingress_ipv6: Option<Ipv6Addr>,
    /// IPv4 source of a pod that reaches itself through a service.
    pub service_loopback_ipv4: Option<Ipv4Addr>,
    /// IPv6 source of a pod that reaches itself through a service.
    pub service_loopback_ipv6: Option<Ipv6Addr>,
    /// The kernel's id of this boot.
    pub boot_id: String,
    /// Labels, from Kubernetes.
    pub labels: BTreeMap<String, String>,
    /// Annotations, from Kubernetes.
    pub annotations: BTreeMap<String, String>,
    /// The UID of its Node object; empty without one.
    pub uid: String,
    /// The cloud's id of the machine, from Kubernetes.
    pub provider_id: String,
    /// Whether its Node object is being deleted or is gone.
    pub is_being_deleted: bool,
}

/// A pool that the node has ranges of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePool {
    /// The pool's name.
    pub name: String,
    /// Its ranges of this node, in the order of the CiliumNode; withdrawn ones that addresses are used of, too.
    pub cidrs: Vec<IpNetwork>,
    /// Whether a range's first address is allocated.
    pub allow_first_ip: bool,
    /// Whether a range's last address is allocated.
    pub allow_last_ip: bool,
}

/// The source of a node's own address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressSource {
    /// The node's devices; another address replaces it when it is removed from them.
    #[default]
    Device,
    /// An option.
    Option,
    /// The Node object, now or in the previous run.
    Node,
}

/// The purpose of a node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum AddressType {
    /// The node's own address.
    InternalIP,
    /// The node's address outside of the cluster.
    ExternalIP,
    /// The pods' gateway.
    CiliumInternalIP,
}

impl AddressType {
    /// Returns the type as objects of the cluster write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InternalIP => "InternalIP",
            Self::ExternalIP => "ExternalIP",
            Self::CiliumInternalIP => "CiliumInternalIP",
        }
    }
}

impl LocalNode {
    /// Returns `name`, or `cluster/name` if the cluster has a configured name.
    #[must_use]
    pub fn full_name(&self) -> String {
        if self.cluster.is_empty() || self.cluster == DEFAULT_CLUSTER {
            self.name.clone()
        } else {
            format!("{}/{}", self.cluster, self.name)
        }
    }

    /// Returns its addresses, own ones before the router's, IPv4 before IPv6.
    #[must_use]
    pub fn addresses(&self) -> Vec<(AddressType, IpAddr)> {
        use AddressType::{CiliumInternalIP, ExternalIP, InternalIP};
        let all = [
            (InternalIP, self.ipv4.map(IpAddr::V4)),
            (InternalIP, self.ipv6.map(IpAddr::V6)),
            (ExternalIP, self.external_ipv4.map(IpAddr::V4)),
            (ExternalIP, self.external_ipv6.map(IpAddr::V6)),
            (CiliumInternalIP, self.router_ipv4.map(IpAddr::V4)),
            (CiliumInternalIP, self.router_ipv6.map(IpAddr::V6)),
        ];
        let present = all.into_iter().filter_map(|(kind, ip)| Some((kind, ip?)));
        present.collect()
    }

    /// Returns the ranges of its pods' IPv4 addresses, the first one first.
    pub fn ipv4_alloc_cidrs(&self) -> impl Iterator<Item = Ipv4Network> {
        self.ipv4_alloc_cidr.into_iter().chain(self.ipv4_secondary_alloc_cidrs.iter().copied())
    }

    /// Returns the ranges of its pods' IPv6 addresses, the first one first.
    pub fn ipv6_alloc_cidrs(&self) -> impl Iterator<Item = Ipv6Network> {
        self.ipv6_alloc_cidr.into_iter().chain(self.ipv6_secondary_alloc_cidrs.iter().copied())
    }

    /// Returns all ranges that the pods of this node may have addresses of, withdrawn ones last.
    pub fn routed_cidrs(&self) -> impl Iterator<Item = IpNetwork> {
        let v4 = self.ipv4_alloc_cidrs().map(IpNetwork::V4);
        v4.chain(self.ipv6_alloc_cidrs().map(IpNetwork::V6)).chain(self.withdrawn_alloc_cidrs.iter().copied())
    }

    /// Replaces the ranges of its pods' IPv4 addresses by those of the cluster. Former ranges become withdrawn ones.
    pub fn assign_ipv4_cidrs(&mut self, cidrs: &[Ipv4Network]) {
        let former: Vec<IpNetwork> = self.ipv4_alloc_cidrs().map(IpNetwork::V4).collect();
        self.set_ipv4_alloc_cidrs(cidrs);
        self.ipv4_cidr_wait = None;
        self.withdraw(former);
    }

    /// Replaces the ranges of its pods' IPv6 addresses by those of the cluster. Former ranges become withdrawn ones.
    pub fn assign_ipv6_cidrs(&mut self, cidrs: &[Ipv6Network]) {
        let former: Vec<IpNetwork> = self.ipv6_alloc_cidrs().map(IpNetwork::V6).collect();
        self.set_ipv6_alloc_cidrs(cidrs);
        self.ipv6_cidr_wait = None;
        self.withdraw(former);
    }

    /// Replaces its pools by those of the cluster. Ranges that leave become withdrawn ones, and their pool keeps them as long
    /// as they are.
    pub fn assign_pools(&mut self, default: &str, mut pools: Vec<NodePool>) {
        pools.sort_by(|a, b| (a.name != default, &a.name).cmp(&(b.name != default, &b.name)));
        let all = || pools.iter().flat_map(|pool| pool.cidrs.iter().copied());
        let ipv4 = |cidr| if let IpNetwork::V4(cidr) = cidr { Some(cidr) } else { None };
        let ipv6 = |cidr| if let IpNetwork::V6(cidr) = cidr { Some(cidr) } else { None };
        let (ipv4, ipv6): (Vec<_>, Vec<_>) =
            (all().filter_map(ipv4).collect(), all().filter_map(ipv6).collect());
        self.assign_ipv4_cidrs(&ipv4);
        self.assign_ipv6_cidrs(&ipv6);
        for former in std::mem::take(&mut self.pools) {
            let withdrawn = former.cidrs.iter().filter(|cidr| self.withdrawn_alloc_cidrs.contains(cidr));
            let withdrawn: Vec<IpNetwork> = withdrawn.copied().collect();
            match pools.iter_mut().find(|pool| pool.name == former.name) {
                _ if withdrawn.is_empty() => {}
                Some(pool) => pool.cidrs.extend(withdrawn),
                None => pools.push(NodePool { cidrs: withdrawn, ..former }),
            }
        }
        self.pools = pools;
    }

    fn withdraw(&mut self, former: Vec<IpNetwork>) {
        let mut withdrawn = std::mem::take(&mut self.withdrawn_alloc_cidrs);
        withdrawn.extend(former.into_iter().filter(|cidr| !withdrawn.contains(cidr)).collect::<Vec<_>>());
        let in_force: Vec<IpNetwork> = self.routed_cidrs().collect();
        withdrawn.retain(|cidr| !in_force.contains(cidr));
        self.withdrawn_alloc_cidrs = withdrawn;
    }

    /// Replaces the ranges of its pods' IPv4 addresses.
    pub fn set_ipv4_alloc_cidrs(&mut self, cidrs: &[Ipv4Network]) {
        self.ipv4_alloc_cidr = cidrs.first().copied();
        self.ipv4_secondary_alloc_cidrs = cidrs.iter().skip(1).copied().collect();
    }

    /// Replaces the ranges of its pods' IPv6 addresses.
    pub fn set_ipv6_alloc_cidrs(&mut self, cidrs: &[Ipv6Network]) {
        self.ipv6_alloc_cidr = cidrs.first().copied();
        self.ipv6_secondary_alloc_cidrs = cidrs.iter().skip(1).copied().collect();
    }

    /// Selects the node's row.
    #[must_use]
    pub fn query() -> Query<Self> {
        BY_LOCAL.query(&true)
    }
}

const BY_LOCAL: Index<LocalNode, bool> = Index::new("local", |_, keys| keys.add(&true));

impl TableSpec for LocalNode {
    const NAME: &'static str = "local-node";
    const PRIMARY: &'static str = "name";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.name
    }

    fn indexes() -> Vec<IndexDef<Self>> {
        vec![BY_LOCAL.def()]
    }
}

impl TableDisplay for LocalNode {
    fn columns() -> &'static [&'static str] {
        &["Name", "Source", "Addresses"]
    }

    fn row(&self) -> Vec<String> {
        let mut addresses: Vec<String> =
            self.addresses().into_iter().map(|(kind, ip)| format!("{}:{ip}", kind.as_str())).collect();
        addresses.sort();
        vec![self.full_name(), "local".to_owned(), addresses.join(", ")]
    }
}

fn text<T: ToString>(ip: Option<T>) -> String {
    ip.map(|ip| ip.to_string()).unwrap_or_default()
}

impl Serialize for LocalNode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let address = |(kind, ip): (AddressType, IpAddr)| JsonAddress::new(kind, ip);
        let ranges = |ranges: Vec<IpNetwork>| -> Option<Vec<JsonCidr>> {
            (!ranges.is_empty()).then(|| ranges.into_iter().map(JsonCidr::from).collect())
        };
        JsonNode {
            name: self.name.clone(),
            cluster: self.cluster.clone(),
            ip_addresses: Some(self.addresses().into_iter().map(address).collect()),
            ipv4_alloc_cidr: self.ipv4_alloc_cidr.map(JsonCidr::from),
            ipv4_secondary: ranges(self.ipv4_secondary_alloc_cidrs.iter().map(|c| (*c).into()).collect()),
            ipv6_alloc_cidr: self.ipv6_alloc_cidr.map(JsonCidr::from),
            ipv6_secondary: ranges(self.ipv6_secondary_alloc_cidrs.iter().map(|c| (*c).into()).collect()),
            ipv4_health: text(self.health_ipv4),
            ipv6_health: text(self.health_ipv6),
            ipv4_ingress: text(self.ingress_ipv4),
            ipv6_ingress: text(self.ingress_ipv6),
            cluster_id: self.cluster_id,
            source: "local".to_owned(),
            labels: Some(self.labels.clone()),
            annotations: Some(self.annotations.clone()),
            boot_id: self.boot_id.clone(),
            local: Some(JsonLocal {
                uid: self.uid.clone(),
                provider_id: self.provider_id.clone(),
                service_loopback_ipv4: text(self.service_loopback_ipv4),
                service_loopback_ipv6: text(self.service_loopback_ipv6),
                is_being_deleted: self.is_being_deleted,
                underlay_protocol: "ipv4".to_owned(),
                ..JsonLocal::default()
            }),
            ..JsonNode::default()
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_leaves_is_withdrawn_until_it_comes_back() {
        let cidr = |text: &str| text.parse::<Ipv4Network>().unwrap();
        let mut node = LocalNode { ipv4_cidr_wait: Some("no Node".into()), ..LocalNode::default() };
        node.assign_ipv4_cidrs(&[cidr("10.0.1.0/24"), cidr("10.0.2.0/24")]);
        assert_eq!((node.ipv4_cidr_wait.clone(), node.withdrawn_alloc_cidrs.len()), (None, 0));
        node.assign_ipv6_cidrs(&["fd00::/112".parse().unwrap()]);
        node.assign_ipv4_cidrs(&[cidr("10.0.3.0/24")]);
        assert_eq!(node.withdrawn_alloc_cidrs, [cidr("10.0.1.0/24").into(), cidr("10.0.2.0/24").into()]);
        assert_eq!(node.routed_cidrs().count(), 4);
        node.assign_ipv4_cidrs(&[cidr("10.0.2.0/24"), cidr("10.0.3.0/24")]);
        assert_eq!(node.withdrawn_alloc_cidrs, [cidr("10.0.1.0/24").into()]);
        assert_eq!(node.ipv4_alloc_cidr, Some(cidr("10.0.2.0/24")));
    }

    #[test]
    fn pools_give_their_ranges_the_default_one_first_and_keep_withdrawn_ones() {
        let pool = |name: &str, cidrs: &[&str]| NodePool {
            name: name.into(),
            cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
            ..NodePool::default()
        };
        let mut node = LocalNode::default();
        let both = [pool("blue", &["10.1.0.0/28"]), pool("default", &["10.9.0.0/24", "fd00::/112"])];
        node.assign_pools("default", both.to_vec());
        assert_eq!(node.ipv4_alloc_cidr.unwrap().to_string(), "10.9.0.0/24");
        assert_eq!(node.ipv4_secondary_alloc_cidrs[0].to_string(), "10.1.0.0/28");
        assert_eq!(node.ipv6_alloc_cidr.unwrap().to_string(), "fd00::/112");
        let before = node.clone();
        node.assign_pools("default", both.to_vec());
        assert_eq!(node, before);

        node.assign_pools("default", vec![pool("default", &["10.9.0.0/24", "10.9.1.0/24"])]);
        let withdrawn: Vec<String> = node.withdrawn_alloc_cidrs.iter().map(ToString::to_string).collect();
        assert_eq!(withdrawn, ["10.1.0.0/28", "fd00::/112"]);
        assert_eq!(
            node.pools,
            [pool("default", &["10.9.0.0/24", "10.9.1.0/24", "fd00::/112"]), pool("blue", &["10.1.0.0/28"])]
        );
        node.withdrawn_alloc_cidrs.clear();
        node.assign_pools("default", vec![pool("default", &["10.9.0.0/24"])]);
        assert_eq!(node.pools, [pool("default", &["10.9.0.0/24", "10.9.1.0/24"])]);
        node.assign_pools(
            "default",
            vec![pool("default", &["10.9.0.0/24"]), pool("green", &["10.9.1.0/24"])],
        );
        assert_eq!(node.withdrawn_alloc_cidrs, [], "it is another pool's");
    }

    /// As recorded from Cilium 1.20.
    #[test]
    fn the_node_is_serialized_as_cilium_does() {
        let node = LocalNode {
            name: "peer1".into(),
            cluster: "default".into(),
            ipv4: Some([10, 99, 0, 1].into()),
            ipv4_alloc_cidr: Some("10.244.0.0/16".parse().unwrap()),
            router_ipv4: Some([10, 244, 71, 14].into()),
            health_ipv4: Some([10, 244, 57, 201].into()),
            ingress_ipv4: Some([10, 244, 57, 202].into()),
            service_loopback_ipv4: Some([169, 254, 42, 1].into()),
            boot_id: "0ad0eb21-119b-477e-9da8-8c797a33ed2a".into(),
            ..LocalNode::default()
        };
        assert_eq!(node.row(), ["peer1", "local", "CiliumInternalIP:10.244.71.14, InternalIP:10.99.0.1"]);
        let json = serde_json::to_string(&node).unwrap();
        assert_eq!(
            json,
            concat!(
                r#"{"Name":"peer1","Cluster":"default","IPAddresses":[{"Type":"InternalIP","IP":"10.99.0.1"},"#,
                r#"{"Type":"CiliumInternalIP","IP":"10.244.71.14"}],"IPv4AllocCIDR":{"IP":"10.244.0.0","Mask":"//8AAA=="},"#,
                r#""IPv4SecondaryAllocCIDRs":null,"IPv6AllocCIDR":null,"IPv6SecondaryAllocCIDRs":null,"#,
                r#""IPv4HealthIP":"10.244.57.201","IPv6HealthIP":"","IPv4IngressIP":"10.244.57.202","IPv6IngressIP":"","ClusterID":0,"#,
                r#""Source":"local","EncryptionKey":0,"Labels":{},"Annotations":{},"WireguardPubKey":"","#,
                r#""BootID":"0ad0eb21-119b-477e-9da8-8c797a33ed2a","Local":{"OptOutNodeEncryption":false,"UID":"","ProviderID":"","#,
                r#""IPv4NativeRoutingCIDR":null,"IPv6NativeRoutingCIDR":null,"ServiceLoopbackIPv4":"169.254.42.1","#,
                r#""ServiceLoopbackIPv6":"","IsBeingDeleted":false,"UnderlayProtocol":"ipv4"}}"#,
            )
        );
        let other = LocalNode { cluster: "east".into(), ..node };
        assert_eq!(other.full_name(), "east/peer1");
    }
}
