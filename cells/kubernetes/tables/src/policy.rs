//! Table `k8s-policies`.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use statedb::{KeyBuf, Query, TableDisplay, TableSpec, age};

use k8s_types::core::{ClusterNetworkPolicy, NetworkPolicy};
use k8s_types::schema::{Strictness, check};
use k8s_types::{Key, Kind, Problem, Refusal, Resource, with_type};

use crate::events::Origin;
use crate::row::{Reflected, Row};

/// Kinds of policies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum PolicyKind {
    /// A policy of a namespace.
    #[default]
    CiliumNetworkPolicy,
    /// A policy of the whole cluster.
    CiliumClusterwideNetworkPolicy,
    /// A policy of a namespace, of Kubernetes itself. Not in the table: these have one of their own, from which
    /// [`PolicyObject::from`] makes them.
    NetworkPolicy,
    /// A policy of the whole cluster, of Kubernetes itself. Not in the table either.
    ClusterNetworkPolicy,
}

impl PolicyKind {
    /// Returns the kind's name in manifests.
    pub fn name(self) -> &'static str {
        self.kind().name()
    }

    /// Returns the Kubernetes kind.
    pub fn kind(self) -> Kind {
        match self {
            PolicyKind::CiliumNetworkPolicy => Kind::CiliumNetworkPolicy,
            PolicyKind::CiliumClusterwideNetworkPolicy => Kind::CiliumClusterwideNetworkPolicy,
            PolicyKind::NetworkPolicy => Kind::NetworkPolicy,
            PolicyKind::ClusterNetworkPolicy => Kind::ClusterNetworkPolicy,
        }
    }

    fn of(kind: Kind) -> Option<PolicyKind> {
        match kind {
            Kind::CiliumNetworkPolicy => Some(PolicyKind::CiliumNetworkPolicy),
            Kind::CiliumClusterwideNetworkPolicy => Some(PolicyKind::CiliumClusterwideNetworkPolicy),
            Kind::NetworkPolicy => Some(PolicyKind::NetworkPolicy),
            Kind::ClusterNetworkPolicy => Some(PolicyKind::ClusterNetworkPolicy),
            _ => None,
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A row of `k8s-policies`: a policy as written. Its rules are validated by the cells that apply them.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyObject {
    /// The source: policies of one name from two sources are two policies, as in Cilium.
    pub source: Arc<str>,
    /// The kind.
    pub kind: PolicyKind,
    /// The namespace; empty for clusterwide ones.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// The UID, which distinguishes it from earlier policies of the name; empty if the source has none.
    pub uid: Arc<str>,
    /// The location where it was read: file and document.
    pub origin: String,
    /// The object as written, without fields of the server: `resourceVersion`, `managedFields`, status.
    pub body: PolicyBody,
    /// The time of the last write of the row.
    #[serde(serialize_with = "time")]
    pub updated_at: Option<SystemTime>,
}

/// A policy object as JSON text, which takes a tenth of the memory of a tree of values. Cheap to clone.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PolicyBody(Arc<str>);

impl PolicyBody {
    /// Returns the text of an object.
    pub fn new(object: &Value) -> PolicyBody {
        PolicyBody(object.to_string().into())
    }

    /// Returns the object, parsed.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// Returns the text, without white space between tokens and with members in alphabetical order.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PolicyBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for PolicyBody {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(to)
    }
}

impl<'de> Deserialize<'de> for PolicyBody {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<PolicyBody, D::Error> {
        Value::deserialize(from).map(|object| PolicyBody::new(&object))
    }
}

impl PolicyObject {
    /// Decodes an object, except for its rules.
    pub fn decode(kind: PolicyKind, object: &Value) -> Result<PolicyObject, Refusal> {
        let problems = but_rules(kind.kind(), object, Strictness::Server);
        if !problems.is_empty() {
            return Err(Refusal(problems));
        }
        let mut body = object.clone();
        body["apiVersion"] = kind.kind().api_version().into();
        body["kind"] = kind.name().into();
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        let namespace = match (kind.kind().namespaced(), text("namespace")) {
            (false, _) => "",
            (true, "") => k8s_types::DEFAULT_NAMESPACE,
            (true, namespace) => namespace,
        };
        if let Some(members) = body.as_object_mut() {
            members.remove("status");
        }
        if let Some(members) = body["metadata"].as_object_mut() {
            match namespace {
                "" => members.remove("namespace"),
                namespace => members.insert("namespace".into(), namespace.into()),
            };
            for name in ["managedFields", "resourceVersion", "generation"] {
                members.remove(name);
            }
        }
        Ok(PolicyObject {
            kind,
            namespace: namespace.into(),
            name: text("name").into(),
            uid: text("uid").into(),
            body: PolicyBody::new(&body),
            ..PolicyObject::default()
        })
    }

    /// Queries the policy of this source, kind and name.
    pub fn by_name(source: &str, kind: PolicyKind, namespace: &str, name: &str) -> Query<PolicyObject> {
        Query::primary(key(source, kind, namespace, name))
    }
}

impl From<&Row<NetworkPolicy>> for PolicyObject {
    fn from(row: &Row<NetworkPolicy>) -> PolicyObject {
        of_row(PolicyKind::NetworkPolicy, row)
    }
}

impl From<&Row<ClusterNetworkPolicy>> for PolicyObject {
    fn from(row: &Row<ClusterNetworkPolicy>) -> PolicyObject {
        of_row(PolicyKind::ClusterNetworkPolicy, row)
    }
}

fn of_row<T: Resource>(kind: PolicyKind, row: &Row<T>) -> PolicyObject {
    let metadata = row.object.metadata();
    PolicyObject {
        source: row.source.clone(),
        kind,
        namespace: metadata.namespace.as_str().into(),
        name: metadata.name.as_str().into(),
        uid: metadata.uid.as_str().into(),
        origin: row.origin.to_string(),
        body: PolicyBody::new(&with_type(&row.object)),
        updated_at: Some(row.updated_at),
    }
}

/// Returns the problems of a policy except those of its rules, which their parser validates.
pub(crate) fn but_rules(kind: Kind, object: &Value, strictness: Strictness) -> Vec<Problem> {
    let rule = |path: &str| {
        path.strip_prefix("spec").is_some_and(|rest| rest.trim_start_matches('s').starts_with(['.', '[']))
    };
    let mut problems = check(kind, object, strictness);
    problems.retain(|problem| !rule(&problem.path));
    let is_given = |name: &str| object.get(name).is_some_and(|value| !value.is_null());
    if problems.is_empty() && !is_given("spec") && !is_given("specs") {
        problems.push(Problem::new("", "has neither spec nor specs; give one of them"));
    }
    problems
}

/// Rows are equal if their objects are, regardless of the time of the last write.
impl PartialEq for PolicyObject {
    fn eq(&self, other: &PolicyObject) -> bool {
        let names = |row: &PolicyObject| {
            (row.source.clone(), row.kind, row.namespace.clone(), row.name.clone(), row.uid.clone())
        };
        names(self) == names(other) && self.origin == other.origin && self.body == other.body
    }
}

impl Reflected for PolicyObject {
    fn read(json: &[u8], from: &Origin) -> Result<PolicyObject, Refusal> {
        let object: Value = serde_json::from_slice(json).map_err(|error| Problem::new("", error))?;
        let policy = PolicyObject::decode(PolicyKind::of(from.kind).unwrap_or_default(), &object)?;
        let (source, origin) = (from.source.clone(), from.origin.to_string());
        Ok(PolicyObject { source, origin, updated_at: Some(from.at), ..policy })
    }

    fn key_of(kind: Kind, source: &str, Key { namespace, name }: &Key) -> KeyBuf {
        KeyBuf::of(&key(source, PolicyKind::of(kind).unwrap_or_default(), namespace, name))
    }

    fn is_of(&self, kind: Kind, source: &str) -> bool {
        (self.kind.kind(), &*self.source) == (kind, source)
    }
}

fn time<S: serde::Serializer>(time: &Option<SystemTime>, to: S) -> Result<S::Ok, S::Error> {
    time.map(|time| api_models::rfc3339(age::shown(time))).serialize(to)
}

fn key(source: &str, kind: PolicyKind, namespace: &str, name: &str) -> String {
    format!("{source}:{kind}/{namespace}/{name}")
}

impl TableSpec for PolicyObject {
    const NAME: &'static str = "k8s-policies";
    const PRIMARY: &'static str = "name";
    type Key<'a> = String;

    fn key(&self) -> String {
        key(&self.source, self.kind, &self.namespace, &self.name)
    }
}

impl TableDisplay for PolicyObject {
    fn columns() -> &'static [&'static str] {
        &["Kind", "Namespace", "Name", "Source", "Origin", "Age"]
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.kind.to_string(),
            self.namespace.to_string(),
            self.name.to_string(),
            self.source.to_string(),
            self.origin.clone(),
            self.updated_at.map(age::since).unwrap_or_default(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_body_is_complete() {
        let manifest = json!({"metadata": {"name": "p"}, "spec": {"endpointSelector": {}, "anything": 1}});
        let policy = PolicyObject::decode(PolicyKind::CiliumNetworkPolicy, &manifest).unwrap();
        assert_eq!(policy.body.value()["metadata"]["namespace"], "default");
        assert_eq!(policy.body.value()["spec"], manifest["spec"]);
        let policy = PolicyObject::decode(
            PolicyKind::CiliumClusterwideNetworkPolicy,
            &json!({"metadata": {"name": "p", "namespace": "x"}, "specs": [{}]}),
        );
        let policy = policy.unwrap();
        assert_eq!((&*policy.namespace, policy.body.value()["metadata"].get("namespace")), ("", None));
    }

    #[test]
    fn a_policy_without_rules_is_refused() {
        let decode = |manifest| {
            PolicyObject::decode(PolicyKind::CiliumNetworkPolicy, &manifest).unwrap_err().to_string()
        };
        assert_eq!(
            decode(json!({"metadata": {"name": "p"}})),
            "has neither spec nor specs; give one of them"
        );
        let typo = json!({"metadata": {"name": "p"}, "Spec": {}, "specs": [{"endpointSelector": 1}]});
        assert_eq!(
            but_rules(Kind::CiliumNetworkPolicy, &typo, Strictness::Manifest),
            [Problem::new("Spec", "is no field; did you mean spec?")]
        );
    }
}
