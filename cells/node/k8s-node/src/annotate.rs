//! Annotations of the Node object: facts of this node that others read, with `annotate-k8s-node`.

use std::collections::BTreeMap;

use k8s_tables::Row;
use k8s_types::core::Node;
use k8s_types::{Key, Kind, Patch, SmolStr, StringMap};
use k8s_writer::{Mutation, Step, Target};
use local_node::LocalNode;
use serde_json::json;

/// Keys of annotations with pod ranges.
#[derive(Clone, Copy, Debug)]
pub struct PodCidrAnnotations;

impl PodCidrAnnotations {
    /// The first IPv4 range.
    pub const IPV4: &str = "network.cilium.io/ipv4-pod-cidr";
    /// The first IPv6 range.
    pub const IPV6: &str = "network.cilium.io/ipv6-pod-cidr";
}

/// Returns the value of an annotation by its key, else by the older form `io.cilium.network.<name>` of it.
pub(crate) fn value<'a>(annotations: &'a StringMap, key: &str) -> Option<&'a SmolStr> {
    annotations.get(key).or_else(|| {
        let name = key.strip_prefix("network.cilium.io/")?;
        annotations.get(&format!("io.cilium.network.{name}"))
    })
}

/// Returns the annotations that describe the node.
pub(crate) fn desired(node: &LocalNode) -> BTreeMap<&'static str, String> {
    let facts = [
        (PodCidrAnnotations::IPV4, node.ipv4_alloc_cidr.map(|cidr| cidr.to_string())),
        (PodCidrAnnotations::IPV6, node.ipv6_alloc_cidr.map(|cidr| cidr.to_string())),
        ("network.cilium.io/ipv4-health-ip", node.health_ipv4.map(|ip| ip.to_string())),
        ("network.cilium.io/ipv6-health-ip", node.health_ipv6.map(|ip| ip.to_string())),
        ("network.cilium.io/ipv4-Ingress-ip", node.ingress_ipv4.map(|ip| ip.to_string())),
        ("network.cilium.io/ipv6-Ingress-ip", node.ingress_ipv6.map(|ip| ip.to_string())),
        ("network.cilium.io/ipv4-cilium-host", node.router_ipv4.map(|ip| ip.to_string())),
        ("network.cilium.io/ipv6-cilium-host", node.router_ipv6.map(|ip| ip.to_string())),
    ];
    facts.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

/// Returns the mutation that adds missing annotations and corrects wrong ones; none if all are there.
pub(crate) fn mutation(node: &LocalNode, object: &Row<Node>) -> Option<(Target, Mutation)> {
    let present = &object.metadata.annotations;
    let wrong = |(key, value): &(&str, String)| present.get(key).is_none_or(|there| there != value.as_str());
    let missing: BTreeMap<_, _> = desired(node).into_iter().filter(wrong).collect();
    if missing.is_empty() {
        return None;
    }
    let patch = json!({"metadata": {"annotations": missing}}).to_string();
    let step = Step::Patch { patch: Patch::Strategic(patch.into()), status: true };
    Some((Target::new(Kind::Node, Key::new("", node.name.as_str())), Mutation::request(step)))
}
