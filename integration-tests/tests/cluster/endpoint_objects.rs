//! The CiliumEndpoints of the node's pods on a real API server.

use std::time::Duration;

use cluster_stage::StageOptions;
use integration_tests::{Cluster, Pod};
use k8s_types::schema::custom_resource_definitions;
use serde_json::{Value, json};
use test_kit::{require_root, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// Creates the pod's object, then the pod.
fn add(cluster: &mut Cluster, name: &str) -> Pod {
    let ports = json!([{"name": "http", "containerPort": 8080}]);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "nodeName": Cluster::NODE, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "none", "ports": ports}],
        },
    });
    cluster.stage.apply(&pod.to_string()).unwrap();
    cluster.node.add_unknown_pod("default", name)
}

fn object(cluster: &Cluster, name: &str) -> Option<Value> {
    cluster.stage.get(&["-n", "default", "ciliumendpoint", name]).ok()
}

/// Requests about CiliumEndpoints of a name that changed or read one, by the audit log: verbs, oldest first.
fn verbs(cluster: &Cluster, name: &str) -> Vec<String> {
    let entries = cluster.stage.audit().unwrap();
    let is_about = |entry: &&Value| {
        let about = &entry["objectRef"];
        let is_done = entry["stage"] == "ResponseComplete";
        let is_agent = entry["user"]["username"] == cluster_stage::User::Agent.name();
        is_done && is_agent && about["resource"] == "ciliumendpoints" && about["name"] == name
    };
    entries.iter().filter(is_about).map(|entry| entry["verb"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_pod_has_its_object_from_add_to_del() {
    require_root!();
    let options = StageOptions { rbac: true, audit: true, ..StageOptions::default() };
    let mut cluster = Cluster::with(&options, &custom_resource_definitions());
    cluster.stage.apply(include_str!("../../../config/roles.yaml")).unwrap();
    cluster.start();
    let pod = add(&mut cluster, "p1");
    wait_until("the object is there", LIMIT, || object(&cluster, "p1").is_some());
    let made = object(&cluster, "p1").unwrap();
    let owner = cluster.stage.get(&["-n", "default", "pod", "p1"]).unwrap();
    let (uid, status) = (&owner["metadata"]["uid"], &made["status"]);
    assert_eq!(
        made["metadata"]["ownerReferences"],
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "p1", "uid": uid}])
    );
    assert_eq!(made["metadata"]["labels"], json!({"app": "p1"}));
    let id = format!("{:?}", cluster.node.endpoints());
    assert!(id.contains(&status["id"].to_string()), "{id}: {status}");
    // As recorded from Cilium 1.20.
    let container = pod.container();
    let mut expected = json!({
        "encryption": {},
        "external-identifiers": {
            "cni-attachment-id": format!("{container}:eth0"), "container-id": container, "k8s-namespace": "default",
            "k8s-pod-name": "p1", "pod-name": "default/p1",
        },
        "id": status["id"],
        "identity": {"id": status["identity"]["id"], "labels": [
            "gen:io.cilium.k8s.named-ports=http.TCP.8080",
            "k8s:app=p1",
            "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=default",
            "k8s:io.cilium.k8s.policy.cluster=default",
            "k8s:io.kubernetes.pod.namespace=default",
        ]},
        "named-ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "networking": {
            "addressing": [{"ipv4": pod.ipv4.to_string(), "ipv6": pod.ipv6.to_string()}],
            "node": integration_tests::Node::IPV4,
        },
        "state": "ready",
    });
    if let Some(account) = owner["spec"]["serviceAccountName"].as_str() {
        expected["service-account"] = account.into();
        let labels = expected["identity"]["labels"].as_array_mut().unwrap();
        labels.insert(4, format!("k8s:io.cilium.k8s.policy.serviceaccount={account}").into());
    }
    assert_eq!(*status, expected);

    // Another client deletes it.
    cluster.stage.kubectl(&["-n", "default", "delete", "ciliumendpoint", "p1"]).unwrap();
    wait_until("it is there again", LIMIT, || object(&cluster, "p1").is_some());
    let again = object(&cluster, "p1").unwrap();
    assert_eq!(again["status"], made["status"]);
    cluster.stage.kubectl(&["-n", "default", "delete", "pod", "p1", "--wait=false"]).unwrap();
    cluster.node.delete_pod(pod);
    wait_until("it is gone", LIMIT, || object(&cluster, "p1").is_none());

    let pod = add(&mut cluster, "p2");
    wait_until("the object is there", LIMIT, || object(&cluster, "p2").is_some());
    cluster.node.delete_pod(pod);
    wait_until("it is gone", LIMIT, || object(&cluster, "p2").is_none());
    let verbs: Vec<String> = verbs(&cluster, "p2");
    assert_eq!(verbs, ["create", "delete"]);
}

/// A deletion that waits in the plugin's queue, and an interface that is gone: both while no agent runs.
#[test]
fn nothing_is_left_of_pods_that_go_while_the_agent_is_dead() {
    require_root!();
    let mut cluster = Cluster::new(&custom_resource_definitions());
    cluster.start();
    let [stays, queued, lost] = ["stays", "queued", "lost"].map(|name| add(&mut cluster, name));
    wait_until("the objects are there", LIMIT, || {
        ["stays", "queued", "lost"].iter().all(|name| object(&cluster, name).is_some())
    });
    let before = object(&cluster, "stays").unwrap();
    cluster.node.kill();
    cluster.node.delete_pod(queued);
    cluster.node.lose_pod(lost);
    cluster.start();
    wait_until("two are gone", LIMIT, || {
        object(&cluster, "queued").is_none() && object(&cluster, "lost").is_none()
    });
    assert_eq!(object(&cluster, "stays"), Some(before), "adopted without a write");
    cluster.node.delete_pod(stays);
    wait_until("the last one is gone", LIMIT, || object(&cluster, "stays").is_none());
}
