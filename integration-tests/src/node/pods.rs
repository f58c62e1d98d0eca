//! Pods of a node, added and removed through the CNI plugin.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use test_kit::wait_until;

use super::{CLUSTER, Node};
use crate::Pod;

/// How long an interface may outlive its namespace.
const LIMIT: Duration = Duration::from_secs(60);

impl Node {
    /// Adds a pod of namespace `default` with the label `name` through the CNI plugin, its manifest first.
    ///
    /// # Panics
    /// When the plugin fails; the message holds its answer and the agent's log.
    pub fn add_pod(&mut self, name: &str) -> Pod {
        self.add_pod_with("default", name, &[("name", name)])
    }

    /// Adds a pod through the CNI plugin, its manifest with these labels first. Names are unique over namespaces.
    ///
    /// # Panics
    /// When the plugin fails; the message holds its answer and the agent's log.
    pub fn add_pod_with(&mut self, namespace: &str, name: &str, labels: &[(&str, &str)]) -> Pod {
        self.apply(&pod_file(name), &pod_manifest(namespace, name, labels));
        self.add_unknown_pod(namespace, name)
    }

    /// Adds a pod without an object in the cluster through the CNI plugin.
    ///
    /// # Panics
    /// When the plugin fails; the message holds its answer and the agent's log.
    pub fn add_unknown_pod(&mut self, namespace: &str, name: &str) -> Pod {
        let ns = self.sandbox.netns(name).unwrap();
        match Pod::add(self, namespace, name, &ns) {
            Ok(pod) => {
                self.pods.push(pod.clone());
                pod
            }
            Err(answer) => panic!("adding pod {name}: {answer}\nlog of the agent:\n{}", self.log()),
        }
    }

    /// Adds `count` pods at once.
    pub fn add_pods(&mut self, count: usize) -> Vec<Pod> {
        (0..count).map(|i| self.add_pod(&format!("pod{i}"))).collect()
    }

    /// Removes a pod through the CNI plugin, and its namespace.
    ///
    /// # Panics
    /// When the plugin fails.
    pub fn delete_pod(&mut self, pod: Pod) {
        pod.cni(self, "DEL").unwrap_or_else(|answer| panic!("DEL {}: {answer}\n{}", pod.name, self.log()));
        let _ = fs::remove_file(self.sandbox.dir().join(CLUSTER).join(pod_file(&pod.name)));
        self.pods.retain(|p| p.name != pod.name);
        self.sandbox.remove_netns(pod.ns).unwrap();
    }

    /// Ends a pod's namespace without a call of the plugin, and waits for the end of its interface: the kernel removes it
    /// later, and an agent that starts before takes the endpoint over.
    ///
    /// # Panics
    /// When the interface stays.
    pub fn lose_pod(&mut self, pod: Pod) {
        self.pods.retain(|p| p.name != pod.name);
        let interface = pod.result["interfaces"][0]["name"].as_str().unwrap().to_owned();
        // The last reference to the namespace.
        self.sandbox.remove_netns(pod.ns).unwrap();
        let show = format!("link show dev {interface}");
        wait_until("the interface is gone", LIMIT, || self.sandbox.host().ip(&show).is_err());
    }
}

/// Returns the file name of a pod's manifest.
fn pod_file(name: &str) -> String {
    format!("pod-{name}.yaml")
}

/// Returns a pod's manifest.
#[must_use]
pub fn pod_manifest(namespace: &str, name: &str, labels: &[(&str, &str)]) -> String {
    let labels: BTreeMap<&str, &str> = labels.iter().copied().collect();
    let pod = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    });
    // JSON is YAML.
    format!("{pod:#}\n")
}
