//! The endpoint's record on disk: `ep_config.json`, key by key as Cilium writes it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use k8s_tables::core::Pod;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::model::mac::Mac;
use crate::model::op_labels::OpLabels;
use crate::model::options::Options;
use labels::{Label, Labels, RESERVED};

/// Annotation of the object that stands for a static pod; its value is the UID that the kubelet gives to the plugin.
const MIRROR_POD: &str = "kubernetes.io/config.mirror";

/// The durable half of an endpoint. Serialises to Cilium's `ep_config.json`: keys in its order, optional ones
/// left out when empty. Unknown keys are ignored, missing ones take their default.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Record {
    /// Id on this node.
    #[serde(rename = "ID")]
    pub id: u16,
    /// Container id of the runtime.
    #[serde(rename = "dockerID", skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub container_id: String,
    /// The pod's network namespace.
    #[serde(deserialize_with = "or_default")]
    pub container_netns_path: String,
    /// Host side of the pod's link.
    #[serde(deserialize_with = "or_default")]
    pub if_name: String,
    /// Index of that interface.
    pub if_index: u32,
    /// Index of the interface that a secondary address belongs to, or zero.
    pub parent_if_index: u32,
    /// The interface inside the pod.
    #[serde(deserialize_with = "or_default")]
    pub container_if_name: String,
    /// Whether lookups by container id or pod name skip it.
    pub disable_legacy_identifiers: bool,
    /// Labels.
    #[serde(deserialize_with = "or_default")]
    pub op_labels: OpLabels,
    /// MAC inside the pod.
    #[serde(rename = "LXCMAC", with = "text")]
    pub mac: Option<Mac>,
    /// IPv6 address.
    #[serde(rename = "IPv6", with = "text")]
    pub ipv6: Option<Ipv6Addr>,
    /// Pool of the IPv6 address.
    #[serde(rename = "IPv6IPAMPool", deserialize_with = "or_default")]
    pub ipv6_pool: String,
    /// IPv4 address.
    #[serde(rename = "IPv4", with = "text")]
    pub ipv4: Option<Ipv4Addr>,
    /// Pool of the IPv4 address.
    #[serde(rename = "IPv4IPAMPool", deserialize_with = "or_default")]
    pub ipv4_pool: String,
    /// MAC of the host side.
    #[serde(rename = "NodeMAC", with = "text")]
    pub node_mac: Option<Mac>,
    /// Security identity.
    pub sec_label: Option<SecurityLabel>,
    /// Switches.
    #[serde(deserialize_with = "or_default")]
    pub options: OptionMap,
    /// DNS rules of the policy, kept for the DNS proxy.
    #[serde(rename = "DNSRules", skip_serializing_if = "Value::is_null")]
    pub dns_rules: Value,
    /// The same in the newer form.
    #[serde(rename = "DNSRulesV2", skip_serializing_if = "Value::is_null")]
    pub dns_rules_v2: Value,
    /// DNS names that the pod has looked up.
    #[serde(rename = "DNSHistory", deserialize_with = "or_default")]
    pub dns_history: Vec<Value>,
    /// DNS names that have expired while connections to them are open.
    #[serde(rename = "DNSZombies", deserialize_with = "or_default")]
    pub dns_zombies: BTreeMap<String, Value>,
    /// Pod.
    #[serde(rename = "K8sPodName", deserialize_with = "or_default")]
    pub k8s_pod_name: String,
    /// Namespace of the pod.
    #[serde(rename = "K8sNamespace", deserialize_with = "or_default")]
    pub k8s_namespace: String,
    /// UID of the pod.
    #[serde(rename = "K8sUID", deserialize_with = "or_default")]
    pub k8s_uid: String,
    /// The datapath options that the pod's plugin requested.
    #[serde(deserialize_with = "or_default")]
    pub datapath_configuration: DatapathConfiguration,
    /// UID of the CiliumEndpoint.
    #[serde(rename = "CiliumEndpointUID", deserialize_with = "or_default")]
    pub cilium_endpoint_uid: String,
    /// Further properties, such as `property-fake`.
    #[serde(deserialize_with = "or_default")]
    pub properties: BTreeMap<String, Value>,
    /// Cookie of the pod's network namespace.
    pub netns_cookie: u64,
    /// Routing table for the pod's traffic, or zero.
    #[serde(rename = "RTInfo")]
    pub rt_info: u32,
}

/// `SecLabel` of the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecurityLabel {
    /// Numeric identity.
    pub id: u32,
    /// Its labels.
    #[serde(default)]
    pub labels: Labels,
}

impl SecurityLabel {
    /// Returns an identity with one label of the source `reserved`.
    pub fn reserved(id: u32, key: &str) -> SecurityLabel {
        SecurityLabel { id, labels: [Label::reserved(key)].into_iter().collect() }
    }
}

/// `Options` of the record.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OptionMap {
    /// Values by name.
    #[serde(default)]
    pub map: Options,
}

/// The datapath options that a CNI plugin may request for its pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct DatapathConfiguration {
    /// No check of source addresses.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disable_sip_verification: bool,
    /// Addresses belong to another allocator: neither reserved nor released here.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub external_ipam: bool,
    /// A host route to the pod.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub install_endpoint_route: bool,
    /// The pod answers ARP itself.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub require_arp_passthrough: bool,
    /// A program towards the pod as well.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub require_egress_prog: bool,
    /// Routing by the datapath; true when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require_routing: Option<bool>,
}

impl Record {
    /// Returns the endpoint's addresses, IPv6 first as in the CNI result.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.ipv6.map(IpAddr::V6).into_iter().chain(self.ipv4.map(IpAddr::V4))
    }

    /// Whether it is the host's own endpoint.
    pub fn is_host(&self) -> bool {
        self.is_own("host")
    }

    /// Whether it is the health endpoint, which every start creates again.
    pub fn is_health(&self) -> bool {
        self.is_own("health")
    }

    /// Whether it is the ingress endpoint: addresses of the node's Envoy, with a policy that only Envoy enforces.
    pub fn is_ingress(&self) -> bool {
        self.is_own("ingress")
    }

    fn is_own(&self, label: &str) -> bool {
        self.op_labels.orchestration_identity.0.get(label).is_some_and(|label| label.source == RESERVED)
    }

    /// Whether its addresses are reserved and released with it. Those of external allocators are not, and those of the
    /// ingress belong to the node.
    pub fn owns_addresses(&self) -> bool {
        !self.datapath_configuration.external_ipam && !self.is_ingress()
    }

    /// Whether it has an interface of its own that the datapath serves. Fake endpoints, those in the host's network and
    /// that of the ingress have none.
    pub fn has_interface(&self) -> bool {
        const WITHOUT: [&str; 3] =
            ["property-fake-endpoint", "property-at-host-network-namespace", "property-without-bpf-endpoint"];
        let set = |name: &&str| self.properties.get(*name).and_then(Value::as_bool).unwrap_or(false);
        !self.is_host() && !self.is_ingress() && !WITHOUT.iter().any(set)
    }

    /// Returns `CID:IFNAME`, `CID` without an interface name; empty without a container.
    pub fn cni_attachment_id(&self) -> String {
        match (self.container_id.as_str(), self.container_if_name.as_str()) {
            ("", _) => String::new(),
            (container, "") => container.to_owned(),
            (container, interface) => format!("{container}:{interface}"),
        }
    }

    /// Returns `NAMESPACE/POD`; `/` if the endpoint is no pod.
    pub fn pod_name(&self) -> String {
        format!("{}/{}", self.k8s_namespace, self.k8s_pod_name)
    }

    /// Whether an object is that of the endpoint's pod, and not of another one of its name.
    pub fn is_of(&self, pod: &Pod) -> bool {
        is_of(pod, self)
    }

    /// Returns the id of the identity; zero before there is one.
    pub fn identity(&self) -> u32 {
        self.sec_label.as_ref().map_or(0, |label| label.id)
    }
}

fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Values that are strings in the file; `None` is the empty string.
mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<T: Display, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_str(""),
        }
    }

    pub(super) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        match Option::<String>::deserialize(from)?.as_deref() {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|e| D::Error::custom(format!("{text:?}: {e}"))),
        }
    }
}

/// Whether an object is that of an endpoint's pod, and not of another one of its name. The UIDs decide; the name alone
/// does if the plugin has not reported a UID or a manifest has none. A static pod has the UID of its
/// manifest, which its object carries as an annotation beside a UID of its own.
pub(crate) fn is_of(pod: &Pod, record: &Record) -> bool {
    let (uid, meta) = (record.k8s_uid.as_str(), &pod.metadata);
    let mirrored = || meta.annotations.get(MIRROR_POD).is_some_and(|of| of == uid);
    uid.is_empty() || meta.uid.is_empty() || meta.uid == uid || mirrored()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The record of a real agent (reference samples/state/ep).
    const ORIGINAL: &str = include_str!("../../tests/samples/ep_config.json");

    #[test]
    fn the_originals_record_survives_byte_by_byte() {
        let record: Record = serde_json::from_str(ORIGINAL).unwrap();
        assert_eq!(record.id, 2386);
        assert_eq!(record.cni_attachment_id(), "cid-p1:eth0");
        assert_eq!(record.pod_name(), "default/p1");
        assert_eq!(record.identity(), 6592);
        assert_eq!(serde_json::to_string(&record).unwrap(), ORIGINAL.trim_end());
    }

    #[test]
    fn unknown_keys_are_ignored_and_missing_ones_defaulted() {
        let record: Record =
            serde_json::from_str(r#"{"ID":7,"ContainerName":"old","OpLabels":null,"DNSHistory":null}"#)
                .unwrap();
        assert_eq!(record.id, 7);
        let written = serde_json::to_string(&record).unwrap();
        let again: Record = serde_json::from_str(&written).unwrap();
        assert_eq!(record, again);
        assert!(written.contains(r#""DNSHistory":[],"DNSZombies":{}"#), "{written}");
        assert!(!written.contains("dockerID"), "{written}");
    }

    #[test]
    fn damaged_values_are_named() {
        let error = serde_json::from_str::<Record>(r#"{"ID":7,"IPv4":"10.0.0.300"}"#).unwrap_err();
        assert!(error.to_string().contains("10.0.0.300"), "{error}");
    }
}
