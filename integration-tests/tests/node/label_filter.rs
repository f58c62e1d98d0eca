//! Labels of pods and namespaces determine identities, by the options `labels` and `label-prefix-file`.

use std::fs;
use std::time::Duration;

use integration_tests::{Node, Pod};
use serde_json::Value;
use test_kit::{require_root, wait_until};

/// Timeout that allows for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// An endpoint's identity, and its labels for information only.
fn identity(node: &Node, pod: &Pod) -> (u64, String, String) {
    let endpoint = node.get(&format!("/v1/endpoint/pod-name:{}%2F{}", pod.namespace, pod.name));
    let status = &endpoint["status"];
    let texts = |labels: &Value| {
        let labels = labels.as_array().into_iter().flatten();
        let own = labels.filter_map(Value::as_str).filter(|label| !label.starts_with("k8s:io."));
        own.collect::<Vec<_>>().join(" ")
    };
    let identity = &status["identity"];
    (identity["id"].as_u64().unwrap(), texts(&identity["labels"]), texts(&status["labels"]["derived"]))
}

#[test]
fn the_filter_decides_which_pods_share_an_identity() {
    require_root!();
    let mut node = Node::new();
    node.config.insert("labels".to_owned(), "k8s:app k8s:!app-hash".to_owned());
    node.start();
    let first = node.add_pod_with("default", "a", &[("app", "web"), ("app-hash", "1"), ("version", "1")]);
    let second = node.add_pod_with("default", "b", &[("app", "web"), ("app-hash", "2"), ("version", "2")]);
    let other = node.add_pod_with("default", "c", &[("app", "db"), ("app-hash", "1"), ("version", "1")]);
    let [a, b, c] = [&first, &second, &other].map(|pod| identity(&node, pod));
    assert_eq!((a.1.as_str(), a.2.as_str()), ("k8s:app=web", "k8s:app-hash=1 k8s:version=1"));
    assert_eq!(a.0, b.0, "what does not count is different");
    assert_ne!(a.0, c.0, "what counts is different");

    // Prefixes of a file in place of the defaults; endpoints of the previous run get new identities.
    let file = node.sandbox().dir().join("prefixes.json");
    fs::write(&file, r#"{"version": 1, "valid-prefixes": [{"prefix": "ver", "source": "k8s"}]}"#).unwrap();
    node.stop();
    node.config.insert("labels".to_owned(), String::new());
    node.config.insert("label-prefix-file".to_owned(), file.display().to_string());
    node.start();
    let all = || [&first, &second, &other].map(|pod| identity(&node, pod));
    wait_until("identities by version", PATIENCE, || {
        let [a, b, c] = all();
        (a.1.as_str(), a.0 == c.0, a.0 == b.0) == ("k8s:version=1", true, false)
    });
    assert_eq!(all()[0].2, "k8s:app=web k8s:app-hash=1");

    // An unusable filter is reported, and the agent does not start.
    node.stop();
    fs::write(&file, r#"{"version": 2, "valid-prefixes": []}"#).unwrap();
    node.spawn();
    wait_until("the refusal", PATIENCE, || {
        let log = node.log();
        log.contains("label-prefix-file") && log.contains("version 2 is not known; the form is")
    });
}

/// Labels of a namespace are labels of its pods, also of those that run already.
#[test]
fn a_namespace_gives_its_labels_to_its_pods() {
    require_root!();
    let mut node = Node::started();
    let namespace = |labels: &str| {
        format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: shop, labels: {{{labels}}}}}}}\n")
    };
    node.apply("namespace.yaml", &namespace("team: a"));
    let pod = node.add_pod_with("shop", "web", &[("app", "web")]);
    let other = node.add_pod_with("default", "web-too", &[("app", "web")]);
    let labels = |pod: &Pod| {
        let endpoint = node.get(&format!("/v1/endpoint/pod-name:{}%2F{}", pod.namespace, pod.name));
        endpoint["status"]["identity"]["labels"].to_string()
    };
    for label in [
        "k8s:io.cilium.k8s.namespace.labels.team=a",
        "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=shop",
        "k8s:io.cilium.k8s.policy.cluster=default",
        "k8s:io.cilium.k8s.policy.serviceaccount=default",
        "k8s:io.kubernetes.pod.namespace=shop",
    ] {
        assert!(labels(&pod).contains(label), "{label} of {}", labels(&pod));
    }
    let (before, other_before) = (identity(&node, &pod).0, identity(&node, &other).0);
    node.apply("namespace.yaml", &namespace("team: b"));
    wait_until("the namespace's new label", PATIENCE, || labels(&pod).contains("namespace.labels.team=b"));
    assert_ne!(identity(&node, &pod).0, before);
    assert_eq!(identity(&node, &other).0, other_before, "a pod of another namespace stays what it is");
}
