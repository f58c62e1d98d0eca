//! A node in Cilium's JSON: in the file `nodes.json`, and as the row of the table `local-node`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use ipnetwork::{IpNetwork, ipv4_mask_to_prefix, ipv6_mask_to_prefix};
use serde::{Deserialize, Serialize};

use crate::AddressType;

/// A node with the names and the order of the fields of Cilium's node type. Its nil lists and maps are `null`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "the names are those of Cilium")]
pub struct JsonNode {
    pub name: String,
    pub cluster: String,
    #[serde(rename = "IPAddresses")]
    pub ip_addresses: Option<Vec<JsonAddress>>,
    #[serde(rename = "IPv4AllocCIDR")]
    pub ipv4_alloc_cidr: Option<JsonCidr>,
    #[serde(rename = "IPv4SecondaryAllocCIDRs")]
    pub ipv4_secondary: Option<Vec<JsonCidr>>,
    #[serde(rename = "IPv6AllocCIDR")]
    pub ipv6_alloc_cidr: Option<JsonCidr>,
    #[serde(rename = "IPv6SecondaryAllocCIDRs")]
    pub ipv6_secondary: Option<Vec<JsonCidr>>,
    #[serde(rename = "IPv4HealthIP")]
    pub ipv4_health: String,
    #[serde(rename = "IPv6HealthIP")]
    pub ipv6_health: String,
    #[serde(rename = "IPv4IngressIP")]
    pub ipv4_ingress: String,
    #[serde(rename = "IPv6IngressIP")]
    pub ipv6_ingress: String,
    #[serde(rename = "ClusterID")]
    pub cluster_id: u32,
    pub source: String,
    pub encryption_key: u8,
    pub labels: Option<BTreeMap<String, String>>,
    pub annotations: Option<BTreeMap<String, String>>,
    pub wireguard_pub_key: String,
    #[serde(rename = "BootID")]
    pub boot_id: String,
    /// Of the node itself only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<JsonLocal>,
}

/// The part of a node that only its own agent has.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "the names are those of Cilium")]
pub struct JsonLocal {
    pub opt_out_node_encryption: bool,
    #[serde(rename = "UID")]
    pub uid: String,
    #[serde(rename = "ProviderID")]
    pub provider_id: String,
    #[serde(rename = "IPv4NativeRoutingCIDR")]
    pub ipv4_native_routing_cidr: Option<JsonCidr>,
    #[serde(rename = "IPv6NativeRoutingCIDR")]
    pub ipv6_native_routing_cidr: Option<JsonCidr>,
    #[serde(rename = "ServiceLoopbackIPv4")]
    pub service_loopback_ipv4: String,
    #[serde(rename = "ServiceLoopbackIPv6")]
    pub service_loopback_ipv6: String,
    pub is_being_deleted: bool,
    pub underlay_protocol: String,
}

/// An address with its type.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "the names are those of Cilium")]
pub struct JsonAddress {
    pub r#type: String,
    #[serde(rename = "IP")]
    pub ip: String,
}

impl JsonAddress {
    /// Creates an address.
    #[must_use]
    pub fn new(kind: AddressType, ip: IpAddr) -> JsonAddress {
        JsonAddress { r#type: kind.as_str().to_owned(), ip: ip.to_string() }
    }
}

/// A range with its mask in base64, as Go writes one.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "the names are those of Cilium")]
pub struct JsonCidr {
    #[serde(rename = "IP")]
    pub ip: String,
    pub mask: String,
}

impl<T: Into<IpNetwork>> From<T> for JsonCidr {
    fn from(range: T) -> JsonCidr {
        let range = range.into();
        let mask = match range.mask() {
            IpAddr::V4(mask) => BASE64_STANDARD.encode(mask.octets()),
            IpAddr::V6(mask) => BASE64_STANDARD.encode(mask.octets()),
        };
        JsonCidr { ip: range.network().to_string(), mask }
    }
}

impl JsonCidr {
    /// Returns the range; none if the address or the mask is invalid.
    #[must_use]
    pub fn range(&self) -> Option<IpNetwork> {
        let mask = BASE64_STANDARD.decode(&self.mask).ok()?;
        let length = match mask.len() {
            4 => ipv4_mask_to_prefix(Ipv4Addr::from(<[u8; 4]>::try_from(mask).ok()?)),
            _ => ipv6_mask_to_prefix(Ipv6Addr::from(<[u8; 16]>::try_from(mask).ok()?)),
        };
        IpNetwork::new(self.ip.parse().ok()?, length.ok()?).ok()
    }
}
