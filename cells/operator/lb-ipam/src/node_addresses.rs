//! Addresses of nodes for load balancers: the pure part of Node IPAM.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_types::core::{EndpointSlice, Node};
use k8s_types::selector::LabelRequirements;
use k8s_types::{SmolStr, StringMap};

use crate::range::Family;

/// The label of nodes that receive no traffic of load balancers.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The taint of nodes that the autoscaler is about to remove.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// A node that may receive traffic of load balancers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeAddresses {
    name: SmolStr,
    labels: StringMap,
    external: Vec<IpAddr>,
    internal: Vec<IpAddr>,
}

impl NodeAddresses {
    /// Returns the addresses of a node, if it may receive traffic.
    pub(crate) fn of(node: &Node) -> Option<NodeAddresses> {
        let metadata = &node.metadata;
        if metadata.deletion_timestamp.is_some()
            || metadata.labels.get(EXCLUDED).is_some()
            || node.spec.taints.iter().any(|taint| taint.key == TO_BE_DELETED)
        {
            return None;
        }
        let of_type = |r#type: &str| {
            let addresses = node.status.addresses.iter().filter(|address| address.r#type == r#type);
            addresses.filter_map(|address| address.address.parse().ok()).collect()
        };
        Some(NodeAddresses {
            name: metadata.name.clone(),
            labels: metadata.labels.clone(),
            external: of_type("ExternalIP"),
            internal: of_type("InternalIP"),
        })
    }
}

/// Returns the names of the nodes on which ready endpoints of these slices are.
pub(crate) fn with_endpoints<'s>(slices: impl Iterator<Item = &'s EndpointSlice>) -> BTreeSet<SmolStr> {
    let endpoints = slices.flat_map(|slice| &slice.endpoints);
    let ready = endpoints.filter(|endpoint| endpoint.conditions.ready != Some(false));
    ready.filter_map(|endpoint| endpoint.node_name.clone()).collect()
}

/// Returns the addresses that a service gets, in order: the external ones of all nodes, the internal ones if there are none.
/// Only nodes that the selector selects count, and those in `only` if there is a limit.
pub(crate) fn ingress<'n>(
    nodes: impl Iterator<Item = &'n NodeAddresses>,
    selector: &LabelRequirements,
    only: Option<&BTreeSet<SmolStr>>,
    families: &BTreeSet<Family>,
) -> Vec<IpAddr> {
    let label = |node: &NodeAddresses| selector.matches(|key| node.labels.get(key).map(SmolStr::as_str));
    let serving: Vec<&NodeAddresses> =
        nodes.filter(|node| only.is_none_or(|only| only.contains(&node.name)) && label(node)).collect();
    let addresses = |of: fn(&NodeAddresses) -> &Vec<IpAddr>| -> BTreeSet<IpAddr> {
        let all = serving.iter().flat_map(|node| of(node)).copied();
        all.filter(|ip| families.contains(&Family::of(*ip))).collect()
    };
    let external = addresses(|node| &node.external);
    let ips = if external.is_empty() { addresses(|node| &node.internal) } else { external };
    ips.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, addresses: &[(&str, &str)], changes: &Value) -> Option<NodeAddresses> {
        let addresses: Vec<Value> =
            addresses.iter().map(|(kind, ip)| json!({"type": kind, "address": ip})).collect();
        let mut node = json!({"metadata": {"name": name}, "spec": {}, "status": {"addresses": addresses}});
        for part in ["metadata", "spec"] {
            for (key, value) in changes[part].as_object().into_iter().flatten() {
                node[part][key] = value.clone();
            }
        }
        NodeAddresses::of(&k8s_types::decode(node.to_string().as_bytes()).unwrap())
    }

    fn texts(
        nodes: &[NodeAddresses],
        only: Option<&[&str]>,
        families: &[Family],
        selector: &str,
    ) -> Vec<String> {
        let only = only.map(|names| names.iter().map(SmolStr::new).collect());
        let families = families.iter().copied().collect();
        let ips = ingress(nodes.iter(), &selector.parse().unwrap(), only.as_ref(), &families);
        ips.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn external_addresses_of_all_nodes_come_before_internal_ones() {
        let (internal, external) = ("InternalIP", "ExternalIP");
        let of = |name, addresses: &[(&str, &str)]| {
            node(name, addresses, &json!({"metadata": {"labels": {"zone": name}}})).unwrap()
        };
        let inside = [
            of("a", &[(internal, "10.0.0.2"), (internal, "fd00::2"), ("Hostname", "a")]),
            of("b", &[(internal, "10.0.0.1"), (internal, "10.0.0.2"), (internal, "?")]),
        ];
        let both = [Family::V4, Family::V6];
        assert_eq!(texts(&inside, None, &both, ""), ["10.0.0.1", "10.0.0.2", "fd00::2"]);
        assert_eq!(texts(&inside, None, &both[..1], ""), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(texts(&inside, Some(&["a"]), &both[..1], ""), ["10.0.0.2"]);
        assert_eq!(texts(&inside, Some(&[]), &both, ""), [""; 0]);
        assert_eq!(texts(&inside, None, &both, "zone in (a)"), ["10.0.0.2", "fd00::2"]);
        let mixed = [inside[0].clone(), of("c", &[(internal, "10.0.0.3"), (external, "203.0.113.3")])];
        assert_eq!(texts(&mixed, None, &both, ""), ["203.0.113.3"]);
        assert_eq!(texts(&mixed, None, &both[1..], ""), ["fd00::2"], "no external one of the family");
    }

    #[test]
    fn nodes_that_go_or_are_excluded_receive_nothing() {
        let address = [("InternalIP", "10.0.0.1")];
        for changes in [
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"metadata": {"labels": {EXCLUDED: ""}}}),
            json!({"spec": {"taints": [{"key": TO_BE_DELETED, "effect": "NoSchedule"}]}}),
        ] {
            assert_eq!(node("a", &address, &changes), None, "{changes}");
        }
        assert!(
            node("a", &address, &json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}}))
                .is_some()
        );
    }

    #[test]
    fn only_ready_endpoints_count() {
        let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "ports": [], "endpoints": [
            {"addresses": ["10.1.0.1"], "conditions": {"ready": true}, "nodeName": "a"},
            {"addresses": ["10.1.0.2"], "conditions": {"ready": false}, "nodeName": "b"},
            {"addresses": ["10.1.0.3"], "conditions": {}, "nodeName": "c"},
            {"addresses": ["10.1.0.4"], "conditions": {"ready": true}},
        ]});
        let slice: EndpointSlice = k8s_types::decode(slice.to_string().as_bytes()).unwrap();
        assert_eq!(with_endpoints([slice].iter()).into_iter().collect::<Vec<_>>(), ["a", "c"]);
    }
}
