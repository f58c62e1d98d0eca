//! Objects of all kinds that the agent has tables of.

use integration_tests::Cluster;
use k8s_types::Kind;
use serde_json::{Value, json};

/// Objects as one manifest.
pub(crate) fn list(items: Vec<Value>) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// One of many objects of a kind, in one of two versions.
pub(crate) fn object(kind: Kind, number: usize, version: usize) -> Value {
    let byte = |shift: usize| (number >> shift) & 0xff;
    let ip = format!("10.{}.{}.{}", version, byte(8), byte(0));
    let port = 1000 + version;
    let name = match kind {
        Kind::CiliumIdentity => (10_000 + number).to_string(),
        _ => format!("o-{number}"),
    };
    let mut object = match kind {
        Kind::Pod => {
            let containers = json!([{"name": "c", "image": format!("i:{version}")}]);
            // Deleted at once, as there is no kubelet.
            json!({"spec": {"nodeName": Cluster::NODE, "terminationGracePeriodSeconds": 0, "containers": containers}})
        }
        Kind::Service => {
            json!({"spec": {"ports": [{"port": port}], "selector": {"app": format!("a{number}")}}})
        }
        Kind::EndpointSlice => {
            json!({"addressType": "IPv4", "endpoints": [{"addresses": [ip]}], "ports": [{"name": "", "port": port}]})
        }
        Kind::NetworkPolicy => json!({"spec": {"podSelector": {}, "ingress": [{"ports": [{"port": port}]}]}}),
        Kind::CiliumNetworkPolicy | Kind::CiliumClusterwideNetworkPolicy => json!({"spec": {
            "endpointSelector": {"matchLabels": {"app": format!("a{number}")}},
            "ingress": [{"toPorts": [{"ports": [{"port": port.to_string(), "protocol": "TCP"}]}]}],
        }}),
        Kind::CiliumCIDRGroup => json!({"spec": {"externalCIDRs": [format!("{ip}/32")]}}),
        Kind::CiliumNode => json!({"spec": {"addresses": [{"type": "InternalIP", "ip": ip}]}}),
        Kind::CiliumIdentity => {
            json!({"security-labels": {"k8s:app": format!("a{number}"), "k8s:version": version.to_string()}})
        }
        Kind::CiliumEndpoint => {
            json!({"status": {"networking": {"addressing": [{"ipv4": ip}], "node": "192.0.2.7"}, "state": "ready"}})
        }
        Kind::Namespace | Kind::Node => json!({}),
        other => panic!("{other:?} is none of them"),
    };
    object["apiVersion"] = kind.api_version().into();
    object["kind"] = kind.name().into();
    object["metadata"] = json!({"name": name, "labels": {"version": version.to_string(), "app": "many"}});
    object
}

/// All kinds that the agent has tables of, but Namespaces and Nodes.
pub(crate) const KINDS: [Kind; 10] = [
    Kind::Pod,
    Kind::Service,
    Kind::EndpointSlice,
    Kind::NetworkPolicy,
    Kind::CiliumNetworkPolicy,
    Kind::CiliumClusterwideNetworkPolicy,
    Kind::CiliumCIDRGroup,
    Kind::CiliumNode,
    Kind::CiliumIdentity,
    Kind::CiliumEndpoint,
];
