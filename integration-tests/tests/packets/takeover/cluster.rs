//! The cluster of the recorded node: the objects that Cilium's agent and operator have left of it and of its pods, at an API
//! server of this process.

use integration_tests::simulated::{SimulatedCluster, Size};
use integration_tests::{Cluster, Node, pod_manifest};
use k8s_types::{Key, Kind};
use serde_json::{Value, json};

use super::POLICY;
use super::cilium_node::{OldPod, Original, ROUTER};

/// Ranges of the node's pods, as Cilium's operator has written them.
const RANGES: [&str; 2] = ["10.244.0.0/24", "fd00:10:244::/112"];

/// Makes a recorded node one of a cluster with its objects.
pub(crate) fn joined(original: &mut Original) -> SimulatedCluster {
    let cluster = SimulatedCluster::new(original.node.host(), Size::nodes(0), &[Kind::Namespace]);
    for option in ["cluster-folder", "ipv4-range", "ipv6-range"] {
        original.node.config.remove(option);
    }
    let options = [
        ("k8s-api-server-urls", cluster.url()),
        ("identity-allocation-mode", "crd"),
        ("ipam", "cluster-pool"),
    ];
    original.node.config.extend(options.map(|(key, value)| (key.to_owned(), value.to_owned())));
    cluster.tracker.add(POLICY).unwrap();
    nodes(&cluster);
    original.pods().into_iter().for_each(|pod| objects_of(&cluster, pod));
    cluster
}

fn nodes(cluster: &SimulatedCluster) {
    let addresses = [Node::IPV4, Node::IPV6];
    let internal = addresses.map(|address| json!({"type": "InternalIP", "address": address}));
    cluster.add(&json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": Cluster::NODE}, "spec": {},
        "status": {"addresses": internal},
    }));
    let router = ROUTER.map(|ip| json!({"type": "CiliumInternalIP", "ip": ip}));
    let internal = addresses.map(|ip| json!({"type": "InternalIP", "ip": ip}));
    let addresses = [internal, router].concat();
    cluster.add(&json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": Cluster::NODE},
        "spec": {
            "addresses": addresses, "ipam": {"podCIDRs": RANGES, "pools": {}},
            "of-a-later-version": {"kept": true},
        },
    }));
}

fn objects_of(cluster: &SimulatedCluster, pod: &OldPod) {
    let mut object: Value =
        serde_json::from_str(&pod_manifest("default", pod.name, &[("app", pod.name)])).unwrap();
    object["spec"]["nodeName"] = Cluster::NODE.into();
    object["spec"]["serviceAccountName"] = "default".into();
    let ips = pod.ips.map(|ip| json!({"ip": ip.to_string()}));
    object["status"] = json!({"phase": "Running", "podIP": pod.ips[0].to_string(), "podIPs": ips});
    cluster.add(&object);
    let uid = cluster.get(Kind::Pod, &key(pod))["metadata"]["uid"].clone();

    let labels = json!({
        "k8s:app": pod.name, "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name": "default",
        "k8s:io.cilium.k8s.policy.cluster": "default", "k8s:io.cilium.k8s.policy.serviceaccount": "default",
        "k8s:io.kubernetes.pod.namespace": "default",
    });
    let texts: Vec<String> = labels
        .as_object()
        .unwrap()
        .iter()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap()))
        .collect();
    cluster.add(&json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumIdentity",
        "metadata": {"name": pod.identity.to_string(), "labels": {"app": pod.name}}, "security-labels": labels,
    }));
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": uid});
    cluster.add(&json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint",
        "metadata": {
            "name": pod.name, "namespace": "default", "labels": {"app": pod.name}, "ownerReferences": [owner],
        },
        "status": {
            "encryption": {}, "id": pod.id, "identity": {"id": pod.identity, "labels": texts}, "state": "ready",
            "external-identifiers": {
                "cni-attachment-id": format!("container-{}:eth0", pod.name),
                "container-id": format!("container-{}", pod.name), "k8s-namespace": "default",
                "k8s-pod-name": pod.name, "pod-name": format!("default/{}", pod.name),
            },
            "networking": {
                "addressing": [{"ipv4": pod.ips[0].to_string(), "ipv6": pod.ips[1].to_string()}],
                "node": Node::IPV4,
            },
            "service-account": "default",
        },
    }));
}

fn key(pod: &OldPod) -> Key {
    Key::new("default", pod.name)
}

/// Returns what other nodes and Cilium's agent rely on: the CiliumEndpoints of the pods with identities and addresses, the
/// CiliumIdentities, and addresses, ranges and further fields of the CiliumNode. A recreated object has another uid.
pub(crate) fn relied_on(cluster: &SimulatedCluster, original: &Original) -> Vec<Value> {
    let uid = |object: &Value| object["metadata"]["uid"].clone();
    let of_pod = |pod: &OldPod| {
        let endpoint = cluster.get(Kind::CiliumEndpoint, &key(pod));
        let identity = cluster.get(Kind::CiliumIdentity, &Key::new("", pod.identity.to_string()));
        let (status, owners) = (&endpoint["status"], &endpoint["metadata"]["ownerReferences"]);
        json!({
            "endpoint": [uid(&endpoint), owners, status["id"], status["identity"], status["networking"], status["state"]],
            "identity": [uid(&identity), identity["security-labels"], identity["metadata"]["annotations"]],
        })
    };
    let node = cluster.get(Kind::CiliumNode, &Key::new("", Cluster::NODE));
    let mut addresses: Vec<String> =
        node["spec"]["addresses"].as_array().unwrap().iter().map(Value::to_string).collect();
    addresses.sort();
    let node =
        json!([uid(&node), addresses, node["spec"]["ipam"]["podCIDRs"], node["spec"]["of-a-later-version"],]);
    original.pods().into_iter().map(of_pod).chain([node]).collect()
}

/// Whether the agent has written its fields into the CiliumNode, which the recorded object does not have.
pub(crate) fn has_written(cluster: &SimulatedCluster) -> bool {
    cluster.get(Kind::CiliumNode, &Key::new("", Cluster::NODE))["spec"]["bootid"].is_string()
}

/// Returns the requests of the agent since the last call that create or delete what its predecessor has left.
pub(crate) fn take_replacements(cluster: &SimulatedCluster) -> Vec<String> {
    let is_one = |request: &String| {
        let is_of_kind =
            ["ciliumendpoints", "ciliumidentities", "ciliumnodes"].iter().any(|kind| request.contains(kind));
        is_of_kind && (request.starts_with("POST ") || request.starts_with("DELETE "))
    };
    cluster.take_requests().into_iter().filter(is_one).collect()
}
