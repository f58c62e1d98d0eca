//! A pod's metadata in cluster objects: labels and the names of its ports.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hive::Backoff;
use k8s_tables::core::{Namespace, Pod};
use k8s_tables::{Api, Key, Kind, Row, Sources};
use labels::{Filter, K8S, Label, Labels, NamedPorts, PORTS};
use statedb::{Snapshot, Table};
use tokio::time::Instant;

use crate::metrics::Counts;
use crate::model::op_labels::OpLabels;
use crate::model::record::{Record, is_of};

/// How long a creation waits for the pod's object.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the watch of pods may lag until the pod is requested from the API server.
const WATCH_LAG: Duration = Duration::from_millis(100);
/// How long an answer of the API server may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest delay between requests for the object of a pod.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// The tables of cluster objects, as far as endpoints need them.
#[derive(Clone)]
pub(crate) struct Objects {
    pub(crate) pods: Arc<Table<Row<Pod>>>,
    pub(crate) namespaces: Arc<Table<Row<Namespace>>>,
    pub(crate) sources: Option<Arc<Sources>>,
    /// Requests to the API server, if there is one.
    pub(crate) api: Option<Arc<dyn Api>>,
    /// The sources that may have pods in a namespace without an object.
    pub(crate) partial: Arc<BTreeSet<String>>,
    /// The cluster's name, once it is known.
    pub(crate) cluster: Arc<dyn Fn() -> String + Send + Sync>,
    pub(crate) counts: Counts,
}

/// The metadata that an endpoint takes from its pod's object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) labels: Labels,
    pub(crate) ports: NamedPorts,
}

impl Metadata {
    fn of(pod: &Pod, namespace: Option<&Namespace>, cluster: &str) -> Metadata {
        let (labels, ports) = identity_core::pod_labels(pod, namespace, cluster);
        Metadata { labels, ports }
    }
}

/// The result of a lookup of an endpoint's pod in the tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Its object, and that of its namespace.
    Found(Metadata),
    /// No object of its name, or the endpoint is no pod.
    NoPod,
    /// The object of another pod of its name: the one before it, or the one after.
    OtherPod,
    /// Its object, but none of its namespace.
    NoNamespace,
}

impl Objects {
    /// Looks the endpoint's pod up in the tables.
    pub(crate) fn lookup(&self, snapshot: &Snapshot, record: &Record) -> Lookup {
        if record.k8s_pod_name.is_empty() {
            return Lookup::NoPod;
        }
        let by_name = Row::by_name(&record.k8s_namespace, &record.k8s_pod_name);
        let Some(row) = self.pods.get(snapshot, by_name) else { return Lookup::NoPod };
        if !is_of(&row.object, record) {
            return Lookup::OtherPod;
        }
        let partial = self.partial.contains(&*row.source);
        self.metadata(snapshot, &row.object, partial).map_or(Lookup::NoNamespace, Lookup::Found)
    }

    /// Returns the metadata of a pod; none before its namespace is known. The namespace's labels are part of the
    /// identity: without them, rules that deny by these labels would not select the pod, and rules that allow by their
    /// absence would.
    fn metadata(&self, snapshot: &Snapshot, pod: &Pod, partial: bool) -> Option<Metadata> {
        let namespace = self.namespaces.get(snapshot, Row::by_name("", &pod.metadata.namespace));
        if namespace.is_none() && !(partial && self.namespaces.initialized(snapshot)) {
            return None;
        }
        Some(Metadata::of(pod, namespace.map(|namespace| &namespace.object), &(self.cluster)()))
    }

    /// Waits for the pod object of a new endpoint, which may be just as new: refreshes folders, and requests it from
    /// the API server if the table has another pod of the name. Returns the metadata of the API server's answer; none
    /// if the tables have the pod, or no source has it: the endpoint starts as `reserved:init` then.
    pub(crate) async fn await_pod(&self, record: &Record) -> Option<Metadata> {
        let snapshot = self.pods.snapshot();
        let by_name = Row::by_name(&record.k8s_namespace, &record.k8s_pod_name);
        let pod = self.pods.get(&snapshot, by_name).filter(|row| is_of(&row.object, record));
        let namespace = self.namespaces.get(&snapshot, Row::by_name("", &record.k8s_namespace));
        let is_known = |row: &Row<Pod>| namespace.is_some() || self.partial.contains(&*row.source);
        if record.k8s_pod_name.is_empty() {
            return None;
        }
        if pod.is_some_and(|row| is_known(row)) {
            self.counts.event_lag(Duration::ZERO);
            return None;
        }
        let begin = Instant::now();
        drop(snapshot);
        let lookup = async {
            if let Some(sources) = &self.sources {
                sources.refresh().await;
            }
            if self.lookup(&self.pods.snapshot(), record) != Lookup::OtherPod {
                return None;
            }
            tokio::select! {
                () = self.watch_pod(record) => None,
                metadata = self.fetch_until_known(record, || true) => metadata,
            }
        };
        let found = tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await;
        // Of a pod that is not known by now it is more.
        self.counts.event_lag(begin.elapsed());
        if found.is_err() {
            tracing::warn!(
                pod = record.pod_name(),
                uid = record.k8s_uid,
                "The pod's object is not known yet; the pod begins as reserved:init"
            );
        }
        found.ok().flatten()
    }

    /// Waits until the table has the endpoint's pod.
    async fn watch_pod(&self, record: &Record) {
        loop {
            let snapshot = self.pods.snapshot();
            let by_name = Row::by_name(&record.k8s_namespace, &record.k8s_pod_name);
            let (row, watch) = self.pods.get_watch(&snapshot, by_name);
            if row.is_some_and(|row| is_of(&row.object, record)) {
                return;
            }
            drop(snapshot);
            watch.changed().await;
        }
    }

    /// Requests the endpoint's pod from the API server, with retries and backoff, until it is found or `is_needed`
    /// returns false. Never returns without an API server: the watch is then the only source.
    pub(crate) async fn fetch_until_known(
        &self,
        record: &Record,
        wanted: impl Fn() -> bool,
    ) -> Option<Metadata> {
        let Some(api) = &self.api else { return std::future::pending().await };
        let key = Key::new(record.k8s_namespace.as_str(), record.k8s_pod_name.as_str());
        let mut backoff = Backoff::exponential(WATCH_LAG, MAX_RETRY_INTERVAL);
        while let Some(wait) = backoff.next_wait() {
            tokio::time::sleep(wait).await;
            if !wanted() {
                return None;
            }
            let answer = tokio::time::timeout(REQUEST_TIMEOUT, api.get(Kind::Pod, &key)).await;
            let pod = match answer {
                Ok(Ok(json)) => k8s_tables::decode::<Pod>(&json).map_err(|error| error.to_string()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("no answer in time".to_owned()),
            };
            let (pod, uid) = (pod, &record.k8s_uid);
            match pod {
                Ok(pod) if is_of(&pod, record) => {
                    if let Some(metadata) = self.metadata(&self.pods.snapshot(), &pod, false) {
                        return Some(metadata);
                    }
                }
                Ok(pod) => {
                    let found = &pod.metadata.uid;
                    tracing::debug!(pod = %key, uid, %found, "The API server has another pod of the name");
                }
                Err(error) => tracing::debug!(pod = %key, uid, %error, "Unable to get the pod"),
            }
        }
        None
    }

    /// Waits until all sources are complete.
    pub(crate) async fn complete(&self) {
        self.pods.wait_initialized().await;
        self.namespaces.wait_initialized().await;
    }
}

/// Returns the labels of an endpoint by its pod's object: those of earlier objects are dropped, those of the request
/// stay.
pub(crate) fn described(before: &OpLabels, metadata: &Metadata, filter: &Filter) -> OpLabels {
    let (identity, info) = filter.split(&metadata.labels);
    let kept = |labels: &Labels| -> Vec<Label> {
        let waiting = |label: &Label| label.source == labels::RESERVED && label.key == "init";
        let of_object = |label: &Label| [K8S, PORTS].contains(&label.source.as_str());
        labels.0.values().filter(|label| !of_object(label) && !waiting(label)).cloned().collect()
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

/// Returns the labels of an endpoint of the previous run, split by the current prefixes.
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
        let metadata = |namespace| Metadata::of(&pod(), namespace, "default");
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
