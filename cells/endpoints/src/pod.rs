//! What cluster objects say of a pod: labels and the names of its ports.

use std::sync::Arc;
use std::time::Duration;

use k8s::core::{ContainerPort, Namespace, Pod};
use k8s::{Row, Sources};
use labels::{K8S, Label, Labels, NAMESPACE_LABELS, POD_NAMESPACE, POLICY_CLUSTER, POLICY_SERVICE_ACCOUNT};
use policy::NamedPorts;
use statedb::Table;

use crate::filter::Filter;
use crate::op_labels::OpLabels;
use crate::record::Record;

/// The label that every namespace has.
const METADATA_NAME: &str = "kubernetes.io/metadata.name";

/// How long a request waits for the sources of cluster objects to look for its pod.
const LOOK: Duration = Duration::from_secs(2);

/// The tables of cluster objects, as far as endpoints care.
#[derive(Clone)]
pub(crate) struct Objects {
    pub(crate) pods: Arc<Table<Row<Pod>>>,
    pub(crate) namespaces: Arc<Table<Row<Namespace>>>,
    pub(crate) sources: Option<Arc<Sources>>,
    /// The cluster's name, once it is known.
    pub(crate) cluster: Arc<dyn Fn() -> String + Send + Sync>,
}

/// What an endpoint is told by its pod's object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) labels: Labels,
    pub(crate) ports: NamedPorts,
}

impl Objects {
    /// What the objects say now of the endpoint's pod; nothing of one that has no object.
    pub(crate) fn of(&self, record: &Record) -> Option<Metadata> {
        if record.k8s_pod_name.is_empty() {
            return None;
        }
        let snapshot = self.pods.snapshot();
        let pod = self.pods.get(&snapshot, Row::by_name(&record.k8s_namespace, &record.k8s_pod_name))?;
        let namespace = self.namespaces.get(&snapshot, Row::by_name("", &record.k8s_namespace));
        let labels = labels(pod, namespace.map(|namespace| &namespace.object), &(self.cluster)());
        Some(Metadata { labels, ports: ports(pod) })
    }

    /// Lets the sources look for a pod that has no object: it may have got one just now.
    pub(crate) async fn look_for(&self, record: &Record) {
        let Some(sources) = &self.sources else { return };
        if !record.k8s_pod_name.is_empty()
            && self.of(record).is_none()
            && tokio::time::timeout(LOOK, sources.look()).await.is_err()
        {
            tracing::warn!(
                pod = record.pod_name(),
                "Cluster objects are slow; the pod begins as reserved:init"
            );
        }
    }

    /// Waits until all sources have said what there is.
    pub(crate) async fn complete(&self) {
        self.pods.wait_initialized().await;
        self.namespaces.wait_initialized().await;
    }
}

/// The labels of a pod: its own, those of its namespace, and those that the agent generates. A namespace without an
/// object has the one label that every namespace has.
fn labels(pod: &Pod, namespace: Option<&Namespace>, cluster: &str) -> Labels {
    let label = |key: String, value: &str| Label { key, value: value.to_owned(), source: K8S.to_owned() };
    // A pod cannot say of itself what only its namespace or the agent may say.
    let own = pod.metadata.labels.iter().filter(|(key, _)| !key.starts_with("io.cilium.k8s."));
    let own = own.map(|(key, value)| label(key.to_string(), value));
    let name = [(METADATA_NAME, pod.metadata.namespace.clone())].into_iter().collect();
    let of_namespace = namespace.map_or(&name, |namespace| &namespace.metadata.labels);
    let of_namespace =
        of_namespace.iter().map(|(key, value)| label(format!("{NAMESPACE_LABELS}{key}"), value));
    let account = &pod.spec.service_account_name;
    let account = (!account.is_empty()).then(|| label(POLICY_SERVICE_ACCOUNT.to_owned(), account));
    let generated =
        [label(POD_NAMESPACE.to_owned(), &pod.metadata.namespace), label(POLICY_CLUSTER.to_owned(), cluster)];
    // Of two with one key the later counts: nobody takes another pod's place by a label of its own.
    own.chain(of_namespace).chain(generated).chain(account).collect()
}

fn ports(pod: &Pod) -> NamedPorts {
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let named = containers.flat_map(|container| &container.ports).filter(|port| !port.name.is_empty());
    named.filter_map(|port| Some((port.name.as_str(), protocol(port)?, port.container_port))).collect()
}

/// The protocol's number; none for one that has no ports.
fn protocol(port: &ContainerPort) -> Option<u8> {
    match port.protocol.as_str() {
        "" | "TCP" => Some(6),
        "UDP" => Some(17),
        "SCTP" => Some(132),
        _ => None,
    }
}

/// The labels of an endpoint when its pod's object says these: what came from an object before goes, what came with
/// the request stays.
pub(crate) fn described(before: &OpLabels, metadata: &Metadata, filter: &Filter) -> OpLabels {
    let (identity, info) = filter.split(&metadata.labels);
    let kept = |labels: &Labels| -> Vec<Label> {
        let waiting = |label: &Label| label.source == labels::RESERVED && label.key == "init";
        labels.0.values().filter(|label| label.source != K8S && !waiting(label)).cloned().collect()
    };
    let identity: Labels =
        kept(&before.orchestration_identity).into_iter().chain(identity.0.into_values()).collect();
    let info = kept(&before.orchestration_info).into_iter().chain(info.0.into_values()).collect();
    let identity = match identity.is_empty() && before.custom.is_empty() {
        true => [Label::reserved("init")].into_iter().collect(),
        false => identity,
    };
    OpLabels { orchestration_identity: identity, orchestration_info: info, ..before.clone() }
}

/// The labels of an endpoint of an earlier run, by the prefixes that count now.
pub(crate) fn filtered(before: &OpLabels, filter: &Filter) -> OpLabels {
    let all = before.orchestration_identity.0.values().chain(before.orchestration_info.0.values());
    let (identity, info) = filter.split(&all.cloned().collect());
    if identity.is_empty() && before.custom.is_empty() {
        return before.clone();
    }
    OpLabels { orchestration_identity: identity, orchestration_info: info, ..before.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = "shop".into();
        pod.metadata.name = "web-0".into();
        pod.metadata.labels = [
            ("app", "web"),
            ("pod-template-hash", "abc"),
            ("io.kubernetes.pod.namespace", "kube-system"),
            ("io.cilium.k8s.namespace.labels.admin", "yes"),
        ]
        .into_iter()
        .collect();
        pod.spec.service_account_name = "web".into();
        pod
    }

    #[test]
    fn a_pod_has_the_labels_of_the_original() {
        let mut namespace = Namespace::default();
        namespace.metadata.labels = [("team", "a")].into_iter().collect();
        let metadata =
            |namespace| Metadata { labels: labels(&pod(), namespace, "default"), ports: ports(&pod()) };
        let described = described(&OpLabels::default(), &metadata(Some(&namespace)), &Filter::default());
        let expected = [
            "k8s:app=web",
            "k8s:io.cilium.k8s.namespace.labels.team=a",
            "k8s:io.cilium.k8s.policy.cluster=default",
            "k8s:io.cilium.k8s.policy.serviceaccount=web",
            "k8s:io.kubernetes.pod.namespace=shop",
        ];
        assert_eq!(described.identity().texts(), expected);
        assert_eq!(described.orchestration_info.texts(), ["k8s:pod-template-hash=abc"]);
        let named = "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=shop";
        assert!(metadata(None).labels.texts().contains(&named.to_owned()), "a namespace without an object");
    }

    #[test]
    fn what_came_with_the_request_stays() {
        let before = OpLabels {
            orchestration_identity: Labels::parse(["reserved:init", "k8s:app=old", "container:x=1"]),
            ..OpLabels::default()
        };
        let metadata = Metadata {
            labels: Labels::parse(["k8s:app=new", "container:x=2"]),
            ports: NamedPorts::default(),
        };
        let after = described(&before, &metadata, &Filter::default());
        assert_eq!(after.identity().texts(), ["k8s:app=new", "container:x=2"]);
    }
}
