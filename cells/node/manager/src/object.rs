//! CiliumNodes as nodes.

use std::net::IpAddr;
use std::str::FromStr;
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

/// Returns the node of an object, and the parts of it that are invalid and left out.
pub(crate) fn node(object: &CiliumNode, cluster: &Cluster) -> (Node, Vec<String>) {
    let spec = &object.spec;
    let annotations = &object.metadata.annotations;
    let mut problems = Vec::new();
    let mut addresses = Vec::new();
    for address in &spec.addresses {
        // Types that only other programs use, such as Hostname, are no fault.
        let Some(kind) = address_type(&address.r#type) else { continue };
        match address.ip.parse().ok().filter(is_usable) {
            Some(ip) => addresses.push(NodeAddress { kind, ip }),
            None => problems.push(format!("spec.addresses: '{}' is no address of a node", address.ip)),
        }
    }
    let mut ranges = Vec::new();
    let pools = spec.ipam.pools.allocated.iter().flat_map(|pool| &pool.cidrs);
    for text in spec.ipam.pod_cidrs.iter().chain(pools) {
        match range(text).filter(is_usable_range) {
            Some(range) => ranges.push(range),
            None => problems.push(format!("spec.ipam: '{text}' is no range of pods, such as 10.0.1.0/24")),
        }
    }
    let encryption_key = u8::try_from(spec.encryption.key).unwrap_or_else(|_| {
        problems.push(format!("spec.encryption.key: {} is not between 0 and 255", spec.encryption.key));
        0
    });
    let wireguard_key = WIREGUARD_KEYS.iter().find_map(|key| annotations.get(key));
    let node = Node {
        cluster: cluster.name.clone(),
        name: object.metadata.name.as_str().into(),
        cluster_id: cluster.id,
        source: NodeSource::CustomResource,
        addresses,
        pod_cidrs: first_of_families(ranges.into_iter()),
        health_ipv4: optional(&mut problems, "spec.health.ipv4", &spec.health.ipv4),
        health_ipv6: optional(&mut problems, "spec.health.ipv6", &spec.health.ipv6),
        ingress_ipv4: optional(&mut problems, "spec.ingress.ipv4", &spec.ingress.ipv4),
        ingress_ipv6: optional(&mut problems, "spec.ingress.ipv6", &spec.ingress.ipv6),
        encryption_key,
        wireguard_key: wireguard_key.map(|key| key.as_str().into()).unwrap_or_default(),
        boot_id: spec.boot_id.as_str().into(),
        labels: object.metadata.labels.clone(),
        annotations: annotations.clone(),
    };
    (node, problems)
}

fn optional<T: FromStr + Copy + Into<IpAddr>>(
    problems: &mut Vec<String>,
    field: &str,
    text: &str,
) -> Option<T> {
    let address = text.parse::<T>().ok().filter(|address| is_usable(&(*address).into()));
    if address.is_none() && !text.is_empty() {
        problems.push(format!("{field}: '{text}' is no address of a node"));
    }
    address
}

/// Returns the type of an address of a node; none for types that only other programs use.
pub(crate) fn address_type(text: &str) -> Option<AddressType> {
    let all = [AddressType::InternalIP, AddressType::ExternalIP, AddressType::CiliumInternalIP];
    all.into_iter().find(|kind| kind.as_str() == text)
}

/// Whether packets can be sent to one node by this address: an object with another one would change what the address
/// means on every node.
pub(crate) fn is_usable(ip: &IpAddr) -> bool {
    let is_special = match ip {
        IpAddr::V4(ip) => ip.is_broadcast() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some(),
    };
    !(is_special || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
}

/// Whether the range can be that of a node's pods, and not that of everything.
pub(crate) fn is_usable_range(range: &IpNetwork) -> bool {
    range.prefix() > 0 && !range.ip().is_loopback() && !range.ip().is_multicast()
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

    fn read(object: serde_json::Value) -> (Node, Vec<String>) {
        let cluster = Cluster { name: "red".into(), id: 7 };
        node(&decode(object.to_string().as_bytes()).unwrap(), &cluster)
    }

    #[test]
    fn an_object_is_read_as_cilium_does() {
        let (node, problems) = read(json!({
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
        assert_eq!(problems, [""; 0]);
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
        let (node, problems) = read(json!({
            "metadata": {"name": "n2"},
            "spec": {
                "addresses": [
                    {"type": "InternalIP", "ip": "192.0.2"},
                    {"type": "Hostname", "ip": "192.0.2.3"},
                    {"type": "InternalIP", "ip": "192.0.2.4"},
                    {"type": "ExternalIP", "ip": "127.0.0.1"},
                    {"type": "CiliumInternalIP", "ip": "::"}
                ],
                "encryption": {"key": 300},
                "health": {"ipv4": "224.0.0.1"},
                "ipam": {"podCIDRs": ["10.0.2.0", "10.0.2.0/33", "none", "0.0.0.0/0", "10.0.2.7/24"]}
            }
        }));
        assert_eq!((node.addresses.len(), node.ipv4()), (1, Some([192, 0, 2, 4].into())));
        assert_eq!(node.pod_cidrs, ["10.0.2.0/24".parse::<IpNetwork>().unwrap()]);
        assert_eq!((node.encryption_key, node.health_ipv4), (0, None));
        assert_eq!(problems.len(), 9);
        assert_eq!(problems[0], "spec.addresses: '192.0.2' is no address of a node");
        assert_eq!(problems[6], "spec.ipam: '0.0.0.0/0' is no range of pods, such as 10.0.1.0/24");
        assert_eq!(problems[8], "spec.health.ipv4: '224.0.0.1' is no address of a node");
    }
}
