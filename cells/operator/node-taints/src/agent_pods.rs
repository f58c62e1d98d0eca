//! The agent pods of all nodes.

use std::collections::BTreeMap;

use k8s_types::SmolStr;
use k8s_types::selector::LabelRequirements;
use operator_objects::{HostPod, Pod};

/// The readiness of a node's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// The node has no agent pod.
    Absent,
    /// None of its agent pods is ready.
    NotReady,
    /// An agent pod is ready.
    Ready,
}

/// The agent pods by node.
#[derive(Debug)]
pub(crate) struct AgentPods {
    namespace: String,
    selector: LabelRequirements,
    /// Whether each pod is ready, by node and name.
    by_node: BTreeMap<SmolStr, BTreeMap<SmolStr, bool>>,
    node_of: BTreeMap<SmolStr, SmolStr>,
}

impl AgentPods {
    /// Follows the selected pods of a namespace.
    pub(crate) fn new(namespace: String, selector: LabelRequirements) -> AgentPods {
        AgentPods { namespace, selector, by_node: BTreeMap::new(), node_of: BTreeMap::new() }
    }

    /// Takes a pod that is new, has changed or is deleted. Returns the nodes that this may concern.
    pub(crate) fn update(&mut self, pod: &Pod, is_deleted: bool) -> Vec<SmolStr> {
        if *pod.namespace != *self.namespace {
            return Vec::new();
        }
        let mut nodes: Vec<SmolStr> = self.remove(&pod.name).into_iter().collect();
        let is_selected = self.selector.matches(|label| pod.labels.get(label).map(SmolStr::as_str));
        let host =
            pod.host.as_deref().filter(|host| is_selected && !is_deleted && !host.node_name.is_empty());
        if let Some(HostPod { node_name, is_ready }) = host {
            // A terminating agent reports that it is ready until it ends.
            let is_ready = *is_ready && !pod.is_terminating;
            self.node_of.insert(pod.name.clone(), node_name.clone());
            self.by_node.entry(node_name.clone()).or_default().insert(pod.name.clone(), is_ready);
            if !nodes.contains(node_name) {
                nodes.push(node_name.clone());
            }
        }
        nodes
    }

    fn remove(&mut self, pod: &SmolStr) -> Option<SmolStr> {
        let node = self.node_of.remove(pod)?;
        if let Some(pods) = self.by_node.get_mut(&node) {
            pods.remove(pod);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
        Some(node)
    }

    /// Returns the readiness of a node's agent.
    pub(crate) fn readiness(&self, node: &str) -> Readiness {
        match self.by_node.get(node) {
            None => Readiness::Absent,
            Some(pods) if pods.values().any(|is_ready| *is_ready) => Readiness::Ready,
            Some(_) => Readiness::NotReady,
        }
    }

    /// Returns the number of nodes with an agent pod, and of those without a ready one.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let not_ready = self.by_node.values().filter(|pods| !pods.values().any(|is_ready| *is_ready)).count();
        (self.by_node.len(), not_ready)
    }
}

#[cfg(test)]
mod tests {
    use k8s_types::core;
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, node: &str, ready: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "kube-system", "labels": {"k8s-app": "cilium"}},
            "spec": {"nodeName": node, "hostNetwork": true, "containers": []},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        })
    }

    fn read(pod: &Value) -> Pod {
        k8s_types::decode::<core::Pod>(pod.to_string().as_bytes()).unwrap().into()
    }

    fn pods() -> AgentPods {
        AgentPods::new("kube-system".to_owned(), "k8s-app=cilium".parse().unwrap())
    }

    #[test]
    fn one_ready_pod_of_a_node_is_enough() {
        let mut pods = pods();
        assert_eq!(pods.readiness("n1"), Readiness::Absent);
        assert_eq!(pods.update(&read(&pod("old", "n1", "False")), false), ["n1"]);
        assert_eq!(pods.readiness("n1"), Readiness::NotReady);
        pods.update(&read(&pod("new", "n1", "True")), false);
        assert_eq!((pods.readiness("n1"), pods.counts()), (Readiness::Ready, (1, 0)));
        let mut terminating = pod("new", "n1", "True");
        terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        pods.update(&read(&terminating), false);
        assert_eq!((pods.readiness("n1"), pods.counts()), (Readiness::NotReady, (1, 1)));
        for name in ["old", "new"] {
            assert_eq!(pods.update(&read(&pod(name, "n1", "True")), true), ["n1"]);
        }
        assert_eq!((pods.readiness("n1"), pods.counts()), (Readiness::Absent, (0, 0)));
    }

    #[test]
    fn pods_of_others_and_pods_without_a_node_do_not_count() {
        let mut pods = pods();
        for (path, value) in [
            ("/metadata/namespace", json!("default")),
            ("/metadata/labels", json!({"k8s-app": "cilium-operator"})),
            ("/spec/nodeName", json!("")),
            ("/spec/hostNetwork", json!(false)),
        ] {
            let mut other = pod("x", "n1", "True");
            *other.pointer_mut(path).unwrap() = value;
            assert_eq!(pods.update(&read(&other), false), [""; 0]);
        }
        assert_eq!(pods.readiness("n1"), Readiness::Absent);
        // A name that is used again on another node concerns both nodes; a changed label counts.
        pods.update(&read(&pod("x", "n1", "True")), false);
        assert_eq!(pods.update(&read(&pod("x", "n2", "True")), false), ["n1", "n2"]);
        assert_eq!((pods.readiness("n1"), pods.readiness("n2")), (Readiness::Absent, Readiness::Ready));
        let mut relabelled = pod("x", "n2", "True");
        relabelled["metadata"]["labels"] = json!({});
        assert_eq!(pods.update(&read(&relabelled), false), ["n2"]);
        assert_eq!(pods.readiness("n2"), Readiness::Absent);
    }
}
