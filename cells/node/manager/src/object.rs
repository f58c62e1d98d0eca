//! CiliumNodes as nodes.

use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use k8s_tables::cilium::CiliumNode;
use local_node::AddressType;

use crate::node::{Node, NodeAddress, first_of_families};
use crate::source::NodeSource;

/// Key of the annotation with the WireGuard public key, and its older form.
const WIREGUARD_KEYS: [&str; 2] = ["network.cilium.io/wg-pub-key", "io.cilium.network.wg-pub-key"];

/// The cluster that objects without a cluster belong to: the agent's own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cluster {
    pub(crate) name: Arc<str>,
    pub(crate) id: u32,
}

/// Returns the node of an object. Addresses and ranges that are invalid are left out, as in Cilium.
pub(crate) fn node(object: &CiliumNode, cluster: &Cluster) -> Node {
    let spec = &object.spec;
    let annotations = &object.metadata.annotations;
    let addresses = spec.addresses.iter().filter_map(|address| {
        Some(NodeAddress { kind: address_type(&address.r#type)?, ip: address.ip.parse().ok()? })
    });
    let pools = spec.ipam.pools.allocated.iter().flat_map(|pool| &pool.cidrs);
    let ranges = spec.ipam.pod_cidrs.iter().chain(pools).filter_map(|text| range(text));
    Node {
        cluster: cluster.name.clone(),
        name: object.metadata.name.as_str().into(),
        cluster_id: cluster.id,
        source: NodeSource::CustomResource,
        addresses: addresses.collect(),
        pod_cidrs: first_of_families(ranges),
        health_ipv4: spec.health.ipv4.parse().ok(),
        health_ipv6: spec.health.ipv6.parse().ok(),
        ingress_ipv4: spec.ingress.ipv4.parse().ok(),
        ingress_ipv6: spec.ingress.ipv6.parse().ok(),
        encryption_key: u8::try_from(spec.encryption.key).unwrap_or_default(),
        wireguard_key: WIREGUARD_KEYS
            .iter()
            .find_map(|key| annotations.get(key))
            .map(|key| key.as_str().into())
            .unwrap_or_default(),
        boot_id: spec.boot_id.as_str().into(),
        labels: object.metadata.labels.clone(),
        annotations: annotations.clone(),
    }
}

fn address_type(text: &str) -> Option<AddressType> {
    let all = [AddressType::InternalIP, AddressType::ExternalIP, AddressType::CiliumInternalIP];
    all.into_iter().find(|kind| kind.as_str() == text)
}

/// Returns the range without host bits; none without a length, which would be the range of one pod.
fn range(text: &str) -> Option<IpNetwork> {
    let (address, length) = text.split_once('/')?;
    let range = IpNetwork::new(address.parse::<IpAddr>().ok()?, length.parse().ok()?).ok()?;
    IpNetwork::new(range.network(), range.prefix()).ok()
}

#[cfg(test)]
mod tests {
    use k8s_tables::decode;
    use serde_json::json;

    use super::*;

    fn read(object: serde_json::Value) -> Node {
        let cluster = Cluster { name: "red".into(), id: 7 };
        node(&decode(object.to_string().as_bytes()).unwrap(), &cluster)
    }

    #[test]
    fn an_object_is_read_as_cilium_does() {
        let node = read(json!({
            "metadata": {
                "name": "n2",
                "labels": {"zone": "a"},
                "annotations": {"network.cilium.io/wg-pub-key": "KEY="}
            },
            "spec": {
                "addresses": [
                    {"type": "InternalIP", "ip": "192.0.2.2"},
                    {"type": "InternalIP", "ip": "2001:db8::2"},
                    {"type": "CiliumInternalIP", "ip": "10.0.2.1"}
                ],
                "bootid": "b",
                "encryption": {"key": 3},
                "health": {"ipv4": "10.0.2.9"},
                "ingress": {"ipv6": "fd00::8"},
                "ipam": {
                    "podCIDRs": ["10.0.2.0/24", "10.0.3.0/24"],
                    "pools": {"allocated": [{"pool": "default", "cidrs": ["fd00::/112", "10.0.2.0/24"]}]}
                }
            }
        }));
        assert_eq!((node.full_name().as_str(), node.cluster_id), ("red/n2", 7));
        assert_eq!(node.source.name(), "custom-resource");
        assert_eq!(node.addresses.len(), 3);
        assert_eq!((node.ipv4(), node.ipv6()), (Some([192, 0, 2, 2].into()), "2001:db8::2".parse().ok()));
        let ranges: Vec<String> = node.pod_cidrs.iter().map(IpNetwork::to_string).collect();
        assert_eq!(ranges, ["10.0.2.0/24", "fd00::/112", "10.0.3.0/24"]);
        assert_eq!((node.health_ipv4, node.health_ipv6), (Some([10, 0, 2, 9].into()), None));
        assert_eq!((node.ingress_ipv4, node.ingress_ipv6), (None, "fd00::8".parse().ok()));
        assert_eq!((node.encryption_key, &*node.wireguard_key, &*node.boot_id), (3, "KEY=", "b"));
        assert_eq!(node.labels.get("zone").map(|zone| zone.as_str()), Some("a"));
    }

    #[test]
    fn invalid_parts_are_left_out() {
        let node = read(json!({
            "metadata": {"name": "n2"},
            "spec": {
                "addresses": [
                    {"type": "InternalIP", "ip": "192.0.2"},
                    {"type": "Hostname", "ip": "192.0.2.3"},
                    {"type": "InternalIP", "ip": "192.0.2.4"}
                ],
                "encryption": {"key": 300},
                "ipam": {"podCIDRs": ["10.0.2.0", "10.0.2.0/33", "none", "10.0.2.7/24"]}
            }
        }));
        assert_eq!(node.addresses.len(), 1);
        assert_eq!(node.pod_cidrs, ["10.0.2.0/24".parse::<IpNetwork>().unwrap()]);
        assert_eq!(node.encryption_key, 0);
    }
}
