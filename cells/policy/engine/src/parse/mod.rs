//! Parses a manifest into a policy, in one pass that reports all problems.

mod cidr;
mod cidr_group;
mod cluster_network_policy;
mod cursor;
mod dns;
mod go_regex;
mod icmp;
mod network_policy;
mod peers;
mod ports;
mod proxy;
mod rule;
mod selectors;
mod services;

use std::sync::Arc;

use labels::{K8S, Label, LabelArray};
use serde_json::Value;

use crate::model::{Action, Direction, Entry, Kind, Peers, Policy, Ports, ResourceId, Subject};
use crate::refusal::Refusal;
use crate::selector::Selector;
use crate::settings::Settings;
use cursor::{Field, Object, Problems, quoted};

/// Maximum number of ports or ICMP types in one element: the limit of Cilium's CRD.
const MAX_FILTERS: usize = 40;
/// Maximum number of JSON values in one object, nested ones included: about ten times what fits into an object that the
/// API server stores.
const MAX_VALUES: usize = 1_000_000;

/// The context that all rules of an object share.
struct Context<'a> {
    /// Namespace of the policy; empty for cluster-wide ones.
    namespace: &'a str,
    settings: &'a Settings,
    kind: Kind,
    /// The labels of the object, which each of its rules has.
    origin: Vec<Label>,
}

/// One of the four lists of entries in a rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Ingress,
    IngressDeny,
    Egress,
    EgressDeny,
}

impl Section {
    const ALL: [Section; 4] = [Section::Ingress, Section::IngressDeny, Section::Egress, Section::EgressDeny];

    fn name(self) -> &'static str {
        match self {
            Section::Ingress => "ingress",
            Section::IngressDeny => "ingressDeny",
            Section::Egress => "egress",
            Section::EgressDeny => "egressDeny",
        }
    }

    fn direction(self) -> Direction {
        match self {
            Section::Ingress | Section::IngressDeny => Direction::Ingress,
            Section::Egress | Section::EgressDeny => Direction::Egress,
        }
    }

    fn allows(self) -> bool {
        self.action() == Action::Allow
    }

    fn action(self) -> Action {
        match self {
            Section::Ingress | Section::Egress => Action::Allow,
            Section::IngressDeny | Section::EgressDeny => Action::Deny,
        }
    }
}

/// Parses a policy object. No field is ignored: an unknown, invalid or unimplemented field rejects the whole object,
/// since enforcing a part of it could allow traffic that the object denies.
///
/// ```
/// use policy_engine::{Kind, Settings, parse};
/// use serde_json::json;
///
/// let manifest = json!({
///     "metadata": {"name": "web", "namespace": "shop"},
///     "spec": {
///         "endpointSelector": {"matchLabels": {"app": "web"}},
///         "ingress": [{"fromEntities": ["world"], "toPorts": [{"ports": [{"port": "70000"}]}]}],
///     },
/// });
/// let refusal = parse(Kind::CiliumNetworkPolicy, &manifest, &Settings::default()).unwrap_err();
/// assert_eq!(refusal.problems[0].path, "spec.ingress[0].toPorts[0].ports[0].port");
/// ```
///
/// # Errors
/// A [`Refusal`] that lists every problem with its path in the manifest and its remedy.
pub fn parse(kind: Kind, manifest: &Value, settings: &Settings) -> Result<Policy, Refusal> {
    let mut problems = Problems::default();
    let root = Field { value: manifest, path: String::new() };
    let mut resource = ResourceId { kind, namespace: "".into(), name: "".into() };
    let mut uid: Arc<str> = "".into();
    let mut entries = Vec::new();
    if !is_smaller(manifest, MAX_VALUES) {
        problems.add("(object)", format!("more than {MAX_VALUES} values"), "split the object");
    } else if let Some(object) = root.value.as_object().and_then(|_| root.object(&mut problems)) {
        read_head(&object, kind, &mut problems);
        (resource, uid) = read_metadata(&object, kind, &mut problems);
        let context = Context {
            namespace: &resource.namespace,
            settings,
            kind,
            origin: origin_labels(&resource, &uid),
        };
        entries = match kind {
            Kind::NetworkPolicy => network_policy::network_policy(&object, &context, &mut problems),
            Kind::ClusterNetworkPolicy => {
                cluster_network_policy::cluster_network_policy(&object, &context, &mut problems)
            }
            _ => read_rules(&object, &context, &mut problems),
        };
    } else {
        problems.add("(object)", format!("{}: must be an object", quoted(manifest)), "");
    }
    entries.shrink_to_fit();
    entries.iter_mut().for_each(shrink);
    match problems.count() {
        0 => Ok(Policy { resource, uid, entries, warnings: problems.into_warnings() }),
        _ => Err(Refusal { object: resource.to_string(), problems: problems.into_list() }),
    }
}

/// Frees the capacity that lists of an entry have grown to: in most policies they have one or two elements.
fn shrink(entry: &mut Entry) {
    let (Subject::Endpoints(subject) | Subject::Node(subject)) = &mut entry.subject;
    let peers = if let Peers::Of(peers) = &mut entry.peers { peers } else { &mut Vec::new() };
    peers.shrink_to_fit();
    for selector in peers.iter_mut().chain([subject]) {
        if let Selector::Labels(requirements) = selector {
            requirements.shrink_to_fit();
        }
    }
    if let Ports::Of(specs) = &mut entry.ports {
        specs.shrink_to_fit();
    }
    entry.redirects.shrink_to_fit();
}

fn read_head(object: &Object<'_>, kind: Kind, problems: &mut Problems) {
    let known: &[&str] = match kind {
        Kind::NetworkPolicy | Kind::ClusterNetworkPolicy => {
            &["apiVersion", "kind", "metadata", "spec", "status"]
        }
        _ => &["apiVersion", "kind", "metadata", "spec", "specs", "status"],
    };
    object.check_names(problems, known, &[]);
    for (name, wanted) in [("apiVersion", kind.api_version()), ("kind", kind.name())] {
        if let Some(field) = object.field(name)
            && let Some(text) = field.text(problems)
            && text != wanted
        {
            problems.add(&field.path, format!("{}: must be {wanted}", quoted(field.value)), "");
        }
    }
}

fn read_metadata(object: &Object<'_>, kind: Kind, problems: &mut Problems) -> (ResourceId, Arc<str>) {
    let metadata = object.field("metadata").and_then(|field| field.object(problems));
    let text = |name, problems: &mut Problems| metadata.as_ref().map_or("", |m| m.text(name, problems));
    let before = problems.count();
    let name = text("name", problems);
    if name.is_empty() && problems.count() == before {
        problems.add("metadata.name", "missing", "every policy has a name");
    }
    let namespace = match (kind.is_namespaced(), text("namespace", problems)) {
        (false, "") => "",
        (false, _) => {
            problems.warn("metadata.namespace", "not looked at: the policy is of the whole cluster", "");
            ""
        }
        (true, "") => "default",
        (true, namespace) => namespace,
    };
    let uid = text("uid", problems).into();
    (ResourceId { kind, namespace: namespace.into(), name: name.into() }, uid)
}

/// Returns the labels that identify the object in each of its rules.
fn origin_labels(resource: &ResourceId, uid: &str) -> Vec<Label> {
    let label = |key: &str, value: &str| Label {
        key: format!("io.cilium.k8s.policy.{key}"),
        value: value.to_owned(),
        source: K8S.to_owned(),
    };
    let mut labels = vec![label("derived-from", resource.kind.name()), label("name", &resource.name)];
    if !resource.namespace.is_empty() {
        labels.push(label("namespace", &resource.namespace));
    }
    labels.push(label("uid", uid));
    labels
}

fn read_rules(object: &Object<'_>, context: &Context<'_>, problems: &mut Problems) -> Vec<Entry> {
    let mut entries = Vec::new();
    let (spec, specs) = (object.field("spec"), object.field("specs"));
    if spec.is_none() && specs.is_none() {
        problems.add("spec", "missing", "write spec or specs");
    }
    if let Some(spec) = spec {
        entries.extend(rule::rule(&spec, context, problems));
    }
    for spec in specs.and_then(|field| field.list(problems)).unwrap_or_default() {
        entries.extend(rule::rule(&spec, context, problems));
    }
    entries
}

/// Returns the labels of a rule as texts: the object's and the user's own.
fn label_texts(origin: &[Label], own: Vec<Label>) -> Arc<[String]> {
    let labels: LabelArray = origin.iter().cloned().chain(own).collect();
    labels.texts().into()
}

/// Whether a JSON value has at most `limit` values, itself and nested ones counted. Uses a list instead of recursion,
/// so that deep nesting cannot overflow the stack.
fn is_smaller(value: &Value, limit: usize) -> bool {
    let mut left = limit;
    let mut todo = vec![value];
    while let Some(value) = todo.pop() {
        let children = match value {
            Value::Array(list) => list.len(),
            Value::Object(map) => map.len(),
            _ => 0,
        };
        let Some(rest) = left.checked_sub(children + 1) else { return false };
        left = rest;
        match value {
            Value::Array(list) => todo.extend(list),
            Value::Object(map) => todo.extend(map.values()),
            _ => {}
        }
    }
    true
}
