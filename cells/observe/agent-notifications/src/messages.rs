//! Notifications as pure functions of a row and its previous version; keys and their order are those of Cilium.

use std::net::IpAddr;
use std::time::SystemTime;

use endpoints::Endpoint;
use ipcache::Entry;
use monitor_events::notification as kind;
use policy::{ObjectId, ObjectState, PolicyStatus};
use policy_engine::Kind;
use serde::Serialize;

/// A notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notification {
    /// The [number of its kind](monitor_events::notification).
    pub(crate) kind: u32,
    /// JSON.
    pub(crate) text: String,
}

impl Notification {
    fn new(kind: u32, content: &impl Serialize) -> Notification {
        // Structs of texts and numbers, which serde_json cannot refuse.
        Notification { kind, text: serde_json::to_string(content).unwrap_or_default() }
    }
}

#[derive(Serialize)]
struct Started {
    time: String,
}

/// Returns the notification of the agent's start.
pub(crate) fn started(at: SystemTime) -> Notification {
    Notification::new(kind::STARTED, &Started { time: api_models::rfc3339_nanos(at) })
}

/// An endpoint, in notifications of its regeneration without the pod.
#[derive(Default, Serialize)]
#[serde(rename_all = "kebab-case")]
struct EndpointContent<'a> {
    #[serde(skip_serializing_if = "is_zero")]
    id: u16,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pod_name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
}

fn is_zero(id: &u16) -> bool {
    *id == 0
}

/// Returns the notifications of a change of an endpoint.
pub(crate) fn endpoint(old: Option<&Endpoint>, new: &Endpoint, deleted: bool) -> Vec<Notification> {
    let record = &new.record;
    let base = || {
        let labels = record.op_labels.identity().texts();
        EndpointContent { id: record.id, labels, ..EndpointContent::default() }
    };
    let whole = |kind| {
        let (pod_name, namespace) = (&*record.k8s_pod_name, &*record.k8s_namespace);
        Notification::new(kind, &EndpointContent { pod_name, namespace, ..base() })
    };
    if deleted {
        return vec![whole(kind::ENDPOINT_DELETED)];
    }
    let mut all = Vec::new();
    if old.is_none() {
        all.push(whole(kind::ENDPOINT_CREATED));
    }
    if let Some((at, error)) = new.last_failure()
        && old.and_then(Endpoint::last_failure).is_none_or(|(before, _)| before != at)
    {
        all.push(Notification::new(kind::ENDPOINT_FAILED, &EndpointContent { error, ..base() }));
    }
    if new.builds > old.map_or(0, |old| old.builds) {
        all.push(Notification::new(kind::ENDPOINT_REGENERATED, &base()));
    }
    all
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct IpcacheContent<'a> {
    cidr: String,
    id: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_ip: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_host_ip: Option<IpAddr>,
    encrypt_key: u8,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pod_name: &'a str,
}

/// Returns the notification of a change of an entry; none if the mapping in force stays.
pub(crate) fn ipcache(old: Option<&Entry>, new: &Entry, deleted: bool) -> Option<Notification> {
    let (before, now) = (old.map(Entry::mapping), new.mapping());
    if !deleted && before.as_ref() == Some(&now) {
        return None;
    }
    let pod = now.pod();
    let content = IpcacheContent {
        cidr: new.prefix.to_string(),
        id: now.identity,
        old_id: before.as_ref().map(|old| old.identity).filter(|_| !deleted),
        host_ip: now.host_ip().filter(|_| !deleted),
        old_host_ip: if deleted { now.host_ip() } else { before.and_then(|old| old.host_ip()) },
        encrypt_key: now.encrypt_key,
        namespace: pod.map_or("", |pod| &pod.namespace),
        pod_name: pod.map_or("", |pod| &pod.name),
    };
    let kind = if deleted { kind::IPCACHE_DELETED } else { kind::IPCACHE_UPSERTED };
    Some(Notification::new(kind, &content))
}

#[derive(Serialize)]
struct PolicyContent<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    rule_count: usize,
}

/// Returns the kind of a policy in names of resources.
fn resource_kind(kind: Kind) -> &'static str {
    match kind {
        Kind::CiliumNetworkPolicy => "cnp",
        Kind::CiliumClusterwideNetworkPolicy => "ccnp",
        Kind::NetworkPolicy => "netpol",
        Kind::ClusterNetworkPolicy => "kcnp",
    }
}

/// Returns the notification of a change of a policy; none if the rules in force stay. `revision` is that of all
/// policies.
pub(crate) fn policy(
    old: Option<&PolicyStatus>,
    new: &PolicyStatus,
    deleted: bool,
    revision: u64,
) -> Option<Notification> {
    let rules_before = old.map_or(0, |old| old.rules);
    if deleted || new.rules == 0 {
        // A policy without rules that goes, or that comes, changes nothing.
        let rule_count = if deleted { new.rules.max(rules_before) } else { rules_before };
        let ObjectId { kind, namespace, name, .. } = &new.object;
        let resource = format!("cilium.io/resource={}/{namespace}/{name}", resource_kind(*kind));
        let content = PolicyContent { labels: vec![&resource], revision: Some(revision), rule_count };
        return (rule_count > 0).then(|| Notification::new(kind::POLICY_DELETED, &content));
    }
    // A refused version leaves the previous one in force.
    let is_same = old.is_some_and(|old| old.rules > 0 && old.revision == new.revision);
    if is_same || new.state != ObjectState::Applied {
        return None;
    }
    let labels = new.rule_labels.iter().flat_map(|labels| labels.iter().map(String::as_str)).collect();
    let content = PolicyContent {
        labels,
        revision: Some(new.revision).filter(|revision| *revision > 0),
        rule_count: new.rules,
    };
    Some(Notification::new(kind::POLICY_UPDATED, &content))
}
