//! The row from objects as clusters have them, and as they should not.

use ipnetwork::Ipv4Network;
use k8s_tables::decode;
use local_node::IpamMode;
use serde_json::{Value, json};

use super::*;

fn settings(ipam: IpamMode) -> Settings {
    let is_required = ipam != IpamMode::DelegatedPlugin;
    let family = FamilySettings { enabled: true, is_configured: false, is_required };
    let ipv6 = FamilySettings { enabled: false, ..family };
    Settings { name: "n1".into(), in_cluster: true, ipam, annotations: true, ipv4: family, ipv6 }
}

fn node(fields: Value) -> Node {
    let mut object = json!({"metadata": {"name": "n1", "uid": "u-1"}});
    for (field, value) in fields.as_object().unwrap() {
        match field.as_str() {
            "metadata" => {
                object["metadata"].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
            }
            field => object[field] = value.clone(),
        }
    }
    decode(object.to_string().as_bytes()).unwrap()
}

fn cilium_node(cidrs: &[&str]) -> CiliumNode {
    let object = json!({"metadata": {"name": "n1"}, "spec": {"ipam": {"podCIDRs": cidrs}}});
    decode(object.to_string().as_bytes()).unwrap()
}

fn run(
    settings: &Settings,
    node: Option<&Node>,
    cilium_node: Option<&CiliumNode>,
    devices: &[&str],
    row: &mut LocalNode,
) -> Findings {
    let device_addresses = devices.iter().map(|ip| ip.parse().unwrap()).collect();
    let facts = Facts { nodes_are_read: true, node, cilium_node, device_addresses: &device_addresses };
    apply(settings, &facts, row)
}

fn cidr(text: &str) -> Ipv4Network {
    text.parse().unwrap()
}

#[test]
fn labels_annotations_and_ids_follow_the_node_and_outlive_it() {
    let object = node(json!({
        "metadata": {"labels": {"topology.kubernetes.io/zone": "z1"}, "annotations": {
            "network.cilium.io/x": "1", "cilium.io/y": "2", "a.b.cilium.io/z": "3",
            "notcilium.io/x": "4", "-.cilium.io/x": "5", "cilium.io.example.com/x": "6", "cilium.io": "7",
        }},
        "spec": {"providerID": "kind://n1", "podCIDRs": ["10.0.1.0/24"]},
    }));
    let (settings, mut row) = (settings(IpamMode::Kubernetes), LocalNode::default());
    assert_eq!(run(&settings, Some(&object), None, &[], &mut row), Findings::default());
    assert_eq!(row.labels["topology.kubernetes.io/zone"], "z1");
    let keys: Vec<&str> = row.annotations.keys().map(String::as_str).collect();
    assert_eq!(keys, ["a.b.cilium.io/z", "cilium.io/y", "network.cilium.io/x"]);
    assert_eq!((row.uid.as_str(), row.provider_id.as_str()), ("u-1", "kind://n1"));
    let findings = run(&settings, None, None, &[], &mut row);
    assert!(row.is_being_deleted && row.labels.len() == 1, "the labels of a deleted Node stay");
    assert_eq!(findings.waits.len(), 1, "{findings:?}");
    assert_eq!(row.ipv4_alloc_cidr, Some(cidr("10.0.1.0/24")), "pods are not harmed");
    run(&settings, Some(&node(json!({"metadata": {"uid": "u-2"}}))), None, &[], &mut row);
    assert_eq!((row.is_being_deleted, row.uid.as_str()), (false, "u-2"));
    let leaving = node(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    run(&settings, Some(&leaving), None, &[], &mut row);
    assert!(row.is_being_deleted);
}

#[test]
fn ranges_of_the_node_have_an_order_of_sources() {
    let settings = settings(IpamMode::Kubernetes);
    let annotation = json!({"annotations": {"network.cilium.io/ipv4-pod-cidr": "10.0.3.0/24"}});
    let older = json!({"annotations": {"io.cilium.network.ipv4-pod-cidr": "10.0.4.0/24"}});
    for (fields, expected) in [
        (
            json!({"metadata": annotation, "spec": {"podCIDR": "10.0.2.0/24", "podCIDRs": ["10.0.1.7/24"]}}),
            "10.0.1.0/24",
        ),
        (json!({"metadata": annotation, "spec": {"podCIDR": "10.0.2.0/24"}}), "10.0.2.0/24"),
        (json!({"metadata": annotation}), "10.0.3.0/24"),
        (json!({"metadata": older}), "10.0.4.0/24"),
    ] {
        let mut row = LocalNode::default();
        run(&settings, Some(&node(fields)), None, &[], &mut row);
        assert_eq!(row.ipv4_alloc_cidr, Some(cidr(expected)));
    }
    let without = Settings { annotations: false, ..settings };
    let mut row = LocalNode::default();
    let findings = run(&without, Some(&node(json!({"metadata": annotation}))), None, &[], &mut row);
    assert_eq!(row.ipv4_alloc_cidr, None);
    let reason = "Node n1 has no spec.podCIDRs of the family, which kube-controller-manager assigns";
    assert_eq!(row.ipv4_cidr_wait.as_deref(), Some(reason));
    assert_eq!(findings.waits, [format!("required IPv4 PodCIDR not available: {reason}")]);
}

#[test]
fn ranges_of_the_cilium_node_come_change_and_are_never_taken_away() {
    let (settings, mut row) = (settings(IpamMode::ClusterPool), LocalNode::default());
    let object = node(json!({"spec": {"podCIDRs": ["10.9.0.0/24"]}}));
    let findings = run(&settings, Some(&object), None, &[], &mut row);
    assert_eq!(findings.waits, ["required IPv4 PodCIDR not available: there is no CiliumNode n1 yet"]);
    run(&settings, Some(&object), Some(&cilium_node(&[])), &[], &mut row);
    assert!(row.ipv4_cidr_wait.as_deref().unwrap().contains("which the operator assigns"));
    let both = cilium_node(&["10.0.1.0/24", "10.0.2.0/24", "10.0.1.0/24"]);
    assert_eq!(run(&settings, Some(&object), Some(&both), &[], &mut row), Findings::default());
    assert!(row.ipv4_alloc_cidrs().eq([cidr("10.0.1.0/24"), cidr("10.0.2.0/24")]));
    assert_eq!(row.ipv4_cidr_wait, None);

    run(&settings, Some(&object), Some(&cilium_node(&["10.0.3.0/24"])), &[], &mut row);
    assert_eq!(row.withdrawn_alloc_cidrs.len(), 2);
    let before = row.clone();
    let findings = run(&settings, Some(&object), Some(&cilium_node(&[])), &[], &mut row);
    assert_eq!(row, before, "an empty list harms nobody");
    assert!(findings.waits[0].ends_with("; the ranges of before stay in force"), "{findings:?}");

    let lies = cilium_node(&["10.0.3.0/24", "10.0.3.128/25", "10.0.0.0/33", "10.0.5.0", ""]);
    let findings = run(&settings, Some(&object), Some(&lies), &[], &mut row);
    assert_eq!(row, before);
    assert_eq!(
        findings.problems,
        [
            "CiliumNode: spec.ipam.podCIDRs: 10.0.3.128/25 overlaps 10.0.3.0/24; it is ignored",
            "CiliumNode: spec.ipam.podCIDRs: '10.0.0.0/33' is no CIDR, as 10.0.1.0/24; it is ignored",
            "CiliumNode: spec.ipam.podCIDRs: '10.0.5.0' is no CIDR, as 10.0.1.0/24; it is ignored",
            "CiliumNode: spec.ipam.podCIDRs: '' is no CIDR, as 10.0.1.0/24; it is ignored",
        ]
    );
}

#[test]
fn a_range_of_an_option_stays_and_one_that_is_not_required_may_be_derived() {
    let mut configured = settings(IpamMode::ClusterPool);
    configured.ipv4.is_configured = true;
    let mut row = LocalNode { ipv4_alloc_cidr: Some(cidr("10.7.0.0/16")), ..LocalNode::default() };
    let object = node(json!({}));
    let findings = run(&configured, Some(&object), Some(&cilium_node(&["10.0.1.0/24"])), &[], &mut row);
    assert_eq!((findings, row.ipv4_alloc_cidr), (Findings::default(), Some(cidr("10.7.0.0/16"))));

    let folder = settings(IpamMode::ClusterPool).without_cluster();
    assert_eq!(
        run(&folder, None, None, &[], &mut LocalNode::default()),
        Findings::default(),
        "it may have no Node"
    );

    let mut row = LocalNode::default();
    let findings = run(&settings(IpamMode::DelegatedPlugin), Some(&object), None, &[], &mut row);
    assert!(findings.may_derive && findings.waits.len() == 1, "{findings:?}");
}

#[test]
fn the_nodes_address_changes_only_to_one_that_exists() {
    let settings = settings(IpamMode::Kubernetes);
    let with = |ips: &[&str]| {
        let list: Vec<Value> = ips.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
        node(json!({"spec": {"podCIDR": "10.0.1.0/24"}, "status": {"addresses": list}}))
    };
    let mut row = LocalNode { ipv4: Some([192, 0, 2, 1].into()), ..LocalNode::default() };
    let devices = ["192.0.2.1", "192.0.2.2"];
    let ip = |last| Some(Ipv4Addr::new(192, 0, 2, last));
    run(&settings, Some(&with(&["bad", "192.0.2.2", "192.0.2.1"])), None, &devices, &mut row);
    assert_eq!((row.ipv4, row.ipv4_source), (ip(2), AddressSource::Node));
    run(&settings, Some(&with(&["192.0.2.1"])), None, &devices, &mut row);
    assert_eq!(row.ipv4, ip(1));
    let findings = run(&settings, Some(&with(&["192.0.2.9"])), None, &devices, &mut row);
    assert_eq!(row.ipv4, ip(1), "peers reach the node by it");
    assert!(findings.problems[0].contains("has the InternalIP 192.0.2.9;"), "{findings:?}");
    run(&settings, Some(&with(&["192.0.2.9"])), None, &[], &mut row);
    assert_eq!(row.ipv4, ip(9), "nothing else is known");
    let mut fixed = LocalNode { ipv4: ip(7), ipv4_source: AddressSource::Option, ..LocalNode::default() };
    run(&settings, Some(&with(&["192.0.2.1"])), None, &devices, &mut fixed);
    assert_eq!(fixed.ipv4, ip(7));
}
