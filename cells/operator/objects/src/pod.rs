//! Table `k8s-pods`.

use hive::prelude::*;
use k8s_tables::{Pool, Projected, Projection, core};
use k8s_types::{SmolStr, StringMap};
use serde::Serialize;

use crate::Uid;

/// A row of the table `k8s-pods`.
pub type PodRow = Projected<Pod>;

/// Provides the table of pods.
#[must_use]
pub fn pods() -> Cell {
    k8s_tables::projected::<Pod, _>(|()| |_: &mut Pod| ())
}

/// The fields of a pod that cells of the operator read.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    /// The namespace.
    pub namespace: SmolStr,
    /// The name.
    pub name: SmolStr,
    /// Distinguishes it from earlier pods of the name.
    pub uid: Uid,
    /// Labels.
    pub labels: StringMap,
    /// The service account that it runs as.
    pub service_account: SmolStr,
    /// Its node, if it uses the network of that, as agents do; others have an endpoint.
    pub host: Option<Box<HostPod>>,
    /// The phase.
    pub phase: Phase,
    /// Whether its deletion was requested.
    pub is_terminating: bool,
}

/// A pod that uses the network of its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPod {
    /// The node that it is bound to; empty if it is bound to none.
    pub node_name: SmolStr,
    /// Whether it is ready, by its condition.
    pub is_ready: bool,
}

/// The phase of a pod, as far as cells distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Phase {
    /// Its containers have not all been started, or its state is unknown.
    Other,
    /// At least one of its containers runs.
    Running,
    /// All its containers have ended, and are not restarted.
    Ended,
}

impl Pod {
    /// Returns an object with these fields: for labels of identities, to which named ports do not belong.
    #[must_use]
    pub fn object(&self) -> core::Pod {
        let mut pod = core::Pod::default();
        (pod.metadata.namespace, pod.metadata.name) = (self.namespace.clone(), self.name.clone());
        pod.metadata.labels = self.labels.clone();
        pod.spec.service_account_name = self.service_account.clone();
        pod
    }
}

impl From<core::Pod> for Pod {
    fn from(pod: core::Pod) -> Pod {
        let core::Pod { metadata, spec, status } = pod;
        let is_ready = || status.conditions.iter().any(|c| c.r#type == "Ready" && c.status == "True");
        let host = spec
            .host_network
            .then(|| Box::new(HostPod { is_ready: is_ready(), node_name: spec.node_name.clone() }));
        Pod {
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid.into(),
            labels: metadata.labels,
            service_account: spec.service_account_name,
            host,
            phase: match status.phase.as_str() {
                "Running" => Phase::Running,
                "Succeeded" | "Failed" => Phase::Ended,
                _ => Phase::Other,
            },
            is_terminating: metadata.deletion_timestamp.is_some(),
        }
    }
}

impl Projection for Pod {
    type Object = core::Pod;

    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn columns() -> &'static [&'static str] {
        &["Name", "UID", "HostNetwork", "Phase"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            format!("{}/{}", self.namespace, self.name),
            self.uid.to_string(),
            self.host.is_some().to_string(),
            format!("{:?}", self.phase),
        ]
    }

    fn share(&mut self, pool: &mut Pool) {
        pool.text(&mut self.namespace);
        pool.map(&mut self.labels);
        pool.text(&mut self.service_account);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut object = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u-1", "labels": {"app": "web"}},
            "spec": {"nodeName": "n1", "serviceAccountName": "cook", "containers": []},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        change(&mut object);
        k8s_types::decode::<core::Pod>(object.to_string().as_bytes()).unwrap().into()
    }

    #[test]
    fn only_changes_of_fields_that_cells_read_change_a_pod() {
        let before = pod(|_| ());
        assert_eq!((&before.host, before.phase, before.is_terminating), (&None, Phase::Running, false));
        for (path, value, is_change) in [
            ("/metadata/uid", json!("u-2"), true),
            ("/metadata/labels", json!({"app": "db"}), true),
            ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"), true),
            ("/metadata/annotations", json!({"a": "b"}), false),
            ("/metadata/resourceVersion", json!("7"), false),
            ("/spec/serviceAccountName", json!("waiter"), true),
            ("/spec/hostNetwork", json!(true), true),
            ("/spec/nodeName", json!("n2"), false),
            ("/status/phase", json!("Failed"), true),
            ("/status/podIP", json!("10.0.0.7"), false),
            ("/status/conditions", json!([]), false),
        ] {
            let (parent, field) = path.rsplit_once('/').unwrap();
            let after = pod(|object| object.pointer_mut(parent).unwrap()[field] = value);
            assert_eq!(after != before, is_change, "{path}");
        }
    }

    #[test]
    fn a_pod_of_the_host_has_its_node_and_readiness() {
        let host = |ready: &str| {
            let pod = pod(|object| {
                object["spec"]["hostNetwork"] = true.into();
                object["status"]["conditions"] =
                    json!([{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": ready}]);
            });
            *pod.host.unwrap()
        };
        assert_eq!(host("True"), HostPod { node_name: "n1".into(), is_ready: true });
        assert_eq!(host("False"), HostPod { node_name: "n1".into(), is_ready: false });
    }

    #[test]
    fn phases_are_those_that_cells_distinguish() {
        let phase = |phase: &str| pod(|object| object["status"]["phase"] = phase.into()).phase;
        let phases = ["Pending", "Running", "Succeeded", "Failed", "Unknown", ""].map(phase);
        use Phase::{Ended, Other, Running};
        assert_eq!(phases, [Other, Running, Ended, Ended, Other, Other]);
    }
}
