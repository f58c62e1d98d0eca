//! The row of table `local-node`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use serde::{Serialize, Serializer};
use statedb::{Index, IndexDef, Query, TableDisplay, TableSpec};

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
    /// The range of its pods' IPv4 addresses.
    pub ipv4_alloc_cidr: Option<Ipv4Network>,
    /// The range of its pods' IPv6 addresses.
    pub ipv6_alloc_cidr: Option<Ipv6Network>,
    /// The pods' IPv4 gateway, the address of `cilium_host` (`CiliumInternalIP`).
    pub router_ipv4: Option<Ipv4Addr>,
    /// The pods' IPv6 gateway (`CiliumInternalIP`).
    pub router_ipv6: Option<Ipv6Addr>,
    /// IPv4 address of the health endpoint.
    pub health_ipv4: Option<Ipv4Addr>,
    /// IPv6 address of the health endpoint.
    pub health_ipv6: Option<Ipv6Addr>,
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
}

/// The purpose of a node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum AddressType {
    /// The node's own address.
    InternalIP,
    /// The pods' gateway.
    CiliumInternalIP,
}

impl AddressType {
    fn as_str(self) -> &'static str {
        match self {
            Self::InternalIP => "InternalIP",
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
        use AddressType::{CiliumInternalIP, InternalIP};
        let all = [
            (InternalIP, self.ipv4.map(IpAddr::V4)),
            (InternalIP, self.ipv6.map(IpAddr::V6)),
            (CiliumInternalIP, self.router_ipv4.map(IpAddr::V4)),
            (CiliumInternalIP, self.router_ipv6.map(IpAddr::V6)),
        ];
        let present = all.into_iter().filter_map(|(kind, ip)| Some((kind, ip?)));
        present.collect()
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

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Cidr {
    #[serde(rename = "IP")]
    ip: IpAddr,
    mask: String,
}

impl Cidr {
    fn new(network: IpNetwork) -> Self {
        let mask = match network.mask() {
            IpAddr::V4(mask) => BASE64_STANDARD.encode(mask.octets()),
            IpAddr::V6(mask) => BASE64_STANDARD.encode(mask.octets()),
        };
        Self { ip: network.network(), mask }
    }
}

fn text<T: ToString>(ip: Option<T>) -> String {
    ip.map(|ip| ip.to_string()).unwrap_or_default()
}

/// The field names and order of Cilium's node type.
impl Serialize for LocalNode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Address {
            r#type: AddressType,
            #[serde(rename = "IP")]
            ip: IpAddr,
        }
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Local {
            opt_out_node_encryption: bool,
            #[serde(rename = "UID")]
            uid: &'static str,
            #[serde(rename = "ProviderID")]
            provider_id: &'static str,
            #[serde(rename = "IPv4NativeRoutingCIDR")]
            ipv4_native_routing_cidr: Option<Cidr>,
            #[serde(rename = "IPv6NativeRoutingCIDR")]
            ipv6_native_routing_cidr: Option<Cidr>,
            #[serde(rename = "ServiceLoopbackIPv4")]
            service_loopback_ipv4: String,
            #[serde(rename = "ServiceLoopbackIPv6")]
            service_loopback_ipv6: String,
            is_being_deleted: bool,
            underlay_protocol: &'static str,
        }
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Wire<'a> {
            name: &'a str,
            cluster: &'a str,
            #[serde(rename = "IPAddresses")]
            ip_addresses: Vec<Address>,
            #[serde(rename = "IPv4AllocCIDR")]
            ipv4_alloc_cidr: Option<Cidr>,
            #[serde(rename = "IPv4SecondaryAllocCIDRs")]
            ipv4_secondary: Option<Vec<Cidr>>,
            #[serde(rename = "IPv6AllocCIDR")]
            ipv6_alloc_cidr: Option<Cidr>,
            #[serde(rename = "IPv6SecondaryAllocCIDRs")]
            ipv6_secondary: Option<Vec<Cidr>>,
            #[serde(rename = "IPv4HealthIP")]
            ipv4_health: String,
            #[serde(rename = "IPv6HealthIP")]
            ipv6_health: String,
            #[serde(rename = "IPv4IngressIP")]
            ipv4_ingress: String,
            #[serde(rename = "IPv6IngressIP")]
            ipv6_ingress: String,
            #[serde(rename = "ClusterID")]
            cluster_id: u32,
            source: &'static str,
            encryption_key: u8,
            labels: &'a BTreeMap<String, String>,
            annotations: &'a BTreeMap<String, String>,
            wireguard_pub_key: &'static str,
            #[serde(rename = "BootID")]
            boot_id: &'a str,
            local: Local,
        }
        Wire {
            name: &self.name,
            cluster: &self.cluster,
            ip_addresses: self.addresses().into_iter().map(|(r#type, ip)| Address { r#type, ip }).collect(),
            ipv4_alloc_cidr: self.ipv4_alloc_cidr.map(|c| Cidr::new(c.into())),
            ipv4_secondary: None,
            ipv6_alloc_cidr: self.ipv6_alloc_cidr.map(|c| Cidr::new(c.into())),
            ipv6_secondary: None,
            ipv4_health: text(self.health_ipv4),
            ipv6_health: text(self.health_ipv6),
            ipv4_ingress: String::new(),
            ipv6_ingress: String::new(),
            cluster_id: self.cluster_id,
            source: "local",
            encryption_key: 0,
            labels: &self.labels,
            annotations: &self.annotations,
            wireguard_pub_key: "",
            boot_id: &self.boot_id,
            local: Local {
                opt_out_node_encryption: false,
                uid: "",
                provider_id: "",
                ipv4_native_routing_cidr: None,
                ipv6_native_routing_cidr: None,
                service_loopback_ipv4: text(self.service_loopback_ipv4),
                service_loopback_ipv6: text(self.service_loopback_ipv6),
                is_being_deleted: false,
                underlay_protocol: "ipv4",
            },
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                r#""IPv4HealthIP":"10.244.57.201","IPv6HealthIP":"","IPv4IngressIP":"","IPv6IngressIP":"","ClusterID":0,"#,
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
