//! The objects of a check.

use serde_json::{Value, json};

use super::super::probe::PORT;

/// Pods that answer: beside the clients, on another node, and behind a policy.
pub(super) const SERVER: &str = "server";
pub(super) const REMOTE: &str = "remote";
pub(super) const CLOSED: &str = "closed";
/// Pods that probe: any client, and one that the policy lets in.
pub(super) const CLIENT: &str = "client";
pub(super) const FRIEND: &str = "friend";
/// The service of the server.
pub(super) const SERVICE: &str = "server";

/// The label by which objects of a check are found.
const APP: &str = "app";
/// The file of a container with the content for the status of its pod after its end.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Returns the namespace, the service and the policy.
pub(super) fn shared(namespace: &str) -> Value {
    let protocols = ["TCP", "UDP"];
    let ports = protocols.map(|protocol| {
        json!({"name": protocol.to_ascii_lowercase(), "protocol": protocol, "port": PORT, "targetPort": PORT})
    });
    let metadata = |name: &str| json!({"name": name, "namespace": namespace});
    let items = json!([
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata(SERVICE),
         "spec": {"type": "NodePort", "selector": {APP: SERVER}, "ports": ports}},
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata("only-friends"),
         "spec": {"podSelector": {"matchLabels": {APP: CLOSED}}, "policyTypes": ["Ingress"],
                  "ingress": [{"from": [{"podSelector": {"matchLabels": {APP: FRIEND}}}]}]}},
    ]);
    list(items)
}

/// Returns a pod that answers probes.
pub(super) fn server(namespace: &str, name: &str, node: &str, image: &str) -> Value {
    pod(namespace, name, node, image, &["probe".to_owned(), "serve".to_owned(), format!("--port={PORT}")])
}

/// Returns a pod that probes targets, each with its expectation.
pub(super) fn client(
    namespace: &str,
    name: &str,
    node: &str,
    image: &str,
    timeout: u64,
    targets: &[String],
) -> Value {
    let options = ["probe", "run", "--report", TERMINATION_LOG, "--timeout"].map(str::to_owned);
    let arguments = [&options[..], &[timeout.to_string()], targets].concat();
    pod(namespace, name, node, image, &arguments)
}

fn pod(namespace: &str, name: &str, node: &str, image: &str, arguments: &[String]) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
    "metadata": {"name": name, "namespace": namespace, "labels": {APP: name}},
    "spec": {
        // Bound to the node without a scheduler: cordons and taints are not what is checked.
        "nodeName": node, "restartPolicy": "Never", "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "probe", "image": image, "command": ["apiary"], "args": arguments,
            "terminationMessagePath": TERMINATION_LOG,
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
    }})
}

/// Returns objects as one.
pub(super) fn list(items: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}
