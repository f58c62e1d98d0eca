//! The node's row from the cluster's objects: a pure function.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use k8s_types::StringMap;
use k8s_types::cilium::CiliumNode;
use k8s_types::core::Node;
use local_node::{AddressSource, LocalNode};

use crate::cidrs::Cidrs;
use crate::config::{FamilySettings, Settings};

/// The objects as far as they are known.
#[derive(Clone, Debug)]
pub(crate) struct Facts<'a> {
    /// Whether the table of Nodes has been listed.
    pub(crate) nodes_are_read: bool,
    pub(crate) node: Option<&'a Node>,
    pub(crate) cilium_node: Option<&'a CiliumNode>,
    /// Addresses of the node's devices.
    pub(crate) device_addresses: &'a BTreeSet<IpAddr>,
}

/// The findings that health reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Objects and fields that are missing.
    pub(crate) waits: Vec<String>,
    /// Fields that are invalid.
    pub(crate) problems: Vec<String>,
    /// Whether a range is missing that an automatic one may replace.
    pub(crate) may_derive: bool,
}

/// Writes the objects' facts into the row.
pub(crate) fn apply(settings: &Settings, facts: &Facts<'_>, row: &mut LocalNode) -> Findings {
    let mut findings = Findings::default();
    match facts.node {
        Some(node) => metadata(node, row),
        None if !settings.in_cluster => {}
        None if !facts.nodes_are_read => findings.waits.push("the Node objects are not read yet".to_owned()),
        // The labels of a deleted Node stay: services and policies of this node must not change with it.
        None if !row.uid.is_empty() => row.is_being_deleted = true,
        None => findings.waits.push(format!("Node {} does not exist in the cluster", settings.name)),
    }
    if let Some(node) = facts.node {
        addresses(settings, node, facts.device_addresses, row, &mut findings);
    }
    if settings.reads_ranges() || !settings.in_cluster {
        ranges(settings, facts, row, &mut findings);
    }
    findings
}

fn metadata(node: &Node, row: &mut LocalNode) {
    let meta = &node.metadata;
    row.labels = (&meta.labels).into();
    row.annotations = cilium_annotations(&meta.annotations);
    row.uid = meta.uid.to_string();
    row.provider_id = node.spec.provider_id.to_string();
    row.is_being_deleted = meta.deletion_timestamp.is_some();
}

/// Returns the annotations whose key has the domain `cilium.io` or one below it.
fn cilium_annotations(annotations: &StringMap) -> BTreeMap<String, String> {
    let is_ours = |key: &str| {
        let domain = key.split_once('/').and_then(|(domain, _)| domain.strip_suffix("cilium.io"));
        let labels = |below: &str| {
            below.strip_suffix('.').is_some_and(|below| {
                below
                    .split('.')
                    .all(|label| !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric()))
            })
        };
        domain.is_some_and(|below| below.is_empty() || labels(below))
    };
    let ours = annotations.iter().filter(|(key, _)| is_ours(key));
    ours.map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn addresses(
    settings: &Settings,
    node: &Node,
    devices: &BTreeSet<IpAddr>,
    row: &mut LocalNode,
    findings: &mut Findings,
) {
    let of_type = |kind: &str| -> Vec<IpAddr> {
        let texts = node.status.addresses.iter().filter(|address| address.r#type == kind);
        texts.filter_map(|address| address.address.parse().ok()).collect()
    };
    let (internal, external) = (of_type("InternalIP"), of_type("ExternalIP"));
    row.external_ipv4 = external.iter().copied().find_map(v4).filter(|_| settings.ipv4.enabled);
    row.external_ipv6 = external.iter().copied().find_map(v6).filter(|_| settings.ipv6.enabled);
    if let Some(ip) = internal.iter().copied().find_map(v4).filter(|_| settings.ipv4.enabled) {
        adopt(ip, devices, &mut row.ipv4, &mut row.ipv4_source, findings);
    }
    if let Some(ip) = internal.iter().copied().find_map(v6).filter(|_| settings.ipv6.enabled) {
        adopt(ip, devices, &mut row.ipv6, &mut row.ipv6_source, findings);
    }
}

fn v4(ip: IpAddr) -> Option<Ipv4Addr> {
    match ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    }
}

fn v6(ip: IpAddr) -> Option<Ipv6Addr> {
    match ip {
        IpAddr::V6(ip) if !ip.is_unicast_link_local() => Some(ip),
        _ => None,
    }
}

/// Takes over the Node's address. Once there is one of the Node, another one that no device has does not replace one
/// that a device has: peers reach the node by it.
fn adopt<T: Copy + PartialEq + Into<IpAddr> + Display>(
    ip: T,
    devices: &BTreeSet<IpAddr>,
    present: &mut Option<T>,
    source: &mut AddressSource,
    findings: &mut Findings,
) {
    if *source == AddressSource::Option {
        return;
    }
    let is_here = devices.contains(&ip.into());
    if !is_here {
        findings.problems.push(format!(
            "Node: status.addresses: no device of this node has the InternalIP {ip}; add it to a device or correct the Node"
        ));
    }
    let keeps =
        *source == AddressSource::Node && present.is_some_and(|present| devices.contains(&present.into()));
    if is_here || !keeps {
        (*present, *source) = (Some(ip), AddressSource::Node);
    }
}

fn ranges(settings: &Settings, facts: &Facts<'_>, row: &mut LocalNode, findings: &mut Findings) {
    let cidrs = Cidrs::read(settings, facts.node, facts.cilium_node);
    findings.problems.extend(cidrs.problems);
    let wanted = |family: FamilySettings| family.enabled && !family.is_configured;
    if wanted(settings.ipv4)
        && !cidrs.ipv4.is_empty()
        && !row.ipv4_alloc_cidrs().eq(cidrs.ipv4.iter().copied())
    {
        row.assign_ipv4_cidrs(&cidrs.ipv4);
    }
    if wanted(settings.ipv6)
        && !cidrs.ipv6.is_empty()
        && !row.ipv6_alloc_cidrs().eq(cidrs.ipv6.iter().copied())
    {
        row.assign_ipv6_cidrs(&cidrs.ipv6);
    }
    let wait = missing(settings, facts);
    let families = [
        (
            "IPv4",
            settings.ipv4,
            cidrs.ipv4.is_empty(),
            row.ipv4_alloc_cidr.is_some(),
            &mut row.ipv4_cidr_wait,
        ),
        (
            "IPv6",
            settings.ipv6,
            cidrs.ipv6.is_empty(),
            row.ipv6_alloc_cidr.is_some(),
            &mut row.ipv6_cidr_wait,
        ),
    ];
    for (name, family, is_missing, has_range, waits_for) in families {
        if !wanted(family) || !is_missing || (has_range && !family.is_required) {
            continue;
        }
        if !has_range {
            *waits_for = Some(wait.clone());
        }
        findings.may_derive |= !family.is_required;
        let in_force = if has_range { "; the ranges of before stay in force" } else { "" };
        findings.waits.push(format!("required {name} PodCIDR not available: {wait}{in_force}"));
    }
}

/// Why the object that has the ranges has none.
fn missing(settings: &Settings, facts: &Facts<'_>) -> String {
    let name = &settings.name;
    match (settings.reads_cilium_node(), facts.cilium_node, facts.node) {
        (true, Some(_), _) => {
            format!("CiliumNode {name} has no spec.ipam.podCIDRs of the family, which the operator assigns")
        }
        (true, None, _) => format!("there is no CiliumNode {name} yet"),
        (false, _, Some(_)) => {
            format!("Node {name} has no spec.podCIDRs of the family, which kube-controller-manager assigns")
        }
        (false, _, None) => format!("there is no Node {name} yet"),
    }
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
