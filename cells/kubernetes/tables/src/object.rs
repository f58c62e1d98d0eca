//! Validation and defaulting of manifests, as by an API server.

use std::fmt;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use k8s_types::schema::{Strictness, check};
use k8s_types::{DEFAULT_NAMESPACE, Key, Kind, Problem, Refusal, Resource, SmolStr};

use crate::policy::but_rules;

/// The label with the name of a namespace, which every namespace has.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// The kind and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectKey {
    pub(crate) kind: Kind,
    pub(crate) key: Key,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.key)
    }
}

/// Returns the name of the object in a manifest that may be otherwise invalid.
pub(crate) fn key_of(kind: Kind, manifest: &Value) -> Option<ObjectKey> {
    let meta = manifest.get("metadata")?;
    let namespace = match (kind.namespaced(), meta.get("namespace")) {
        (false, _) => "",
        (true, None | Some(Value::Null)) => DEFAULT_NAMESPACE,
        (true, Some(namespace)) => namespace.as_str()?,
    };
    Some(ObjectKey { kind, key: Key::new(namespace, meta.get("name")?.as_str()?) })
}

/// Validates and defaults a manifest as an API server would. A pod without a node is assigned to this node, since there
/// is no scheduler.
pub(crate) fn object(kind: Kind, manifest: &Value, node: &str) -> Result<(ObjectKey, Bytes), Refusal> {
    checked(kind, manifest)?;
    completed(kind, manifest, node)
}

fn completed(kind: Kind, manifest: &Value, node: &str) -> Result<(ObjectKey, Bytes), Refusal> {
    let mut object = manifest.clone();
    complete(kind, &mut object, node);
    let key = key_of(kind, &object).ok_or_else(|| Problem::new("metadata.name", "is missing"))?;
    // Keys are strings and numbers are finite, so serialization cannot fail.
    Ok((key, serde_json::to_vec(&object).unwrap_or_default().into()))
}

fn checked(kind: Kind, manifest: &Value) -> Result<(), Refusal> {
    let problems = match kind {
        Kind::CiliumNetworkPolicy | Kind::CiliumClusterwideNetworkPolicy => {
            but_rules(kind, manifest, Strictness::Manifest)
        }
        _ => check(kind, manifest, Strictness::Manifest),
    };
    if problems.is_empty() { Ok(()) } else { Err(Refusal(problems)) }
}

/// As [`manifest`], with the manifest's JSON text: faster.
pub fn manifest_of_json<T: Resource>(manifest: &Value, json: &str) -> Result<(T, Vec<Problem>), Refusal> {
    match T::KIND {
        // These kinds have fields to default.
        Kind::Namespace | Kind::Pod => self::manifest(manifest),
        kind => {
            let unknown = unknown_fields(kind, manifest)?;
            let mut object: T = k8s_types::decode(json.as_bytes())?;
            let namespace = &mut object.metadata_mut().namespace;
            match kind.namespaced() {
                true if namespace.is_empty() => *namespace = DEFAULT_NAMESPACE.into(),
                true => {}
                false => *namespace = SmolStr::default(),
            }
            Ok((object, unknown))
        }
    }
}

/// Parses, validates and defaults a manifest as an API server would. Unknown fields are ignored, as by Cilium, and
/// returned as problems.
pub fn manifest<T: Resource>(manifest: &Value) -> Result<(T, Vec<Problem>), Refusal> {
    let unknown = unknown_fields(T::KIND, manifest)?;
    let (_, json) = completed(T::KIND, manifest, "")?;
    Ok((k8s_types::decode(&json)?, unknown))
}

/// Returns the unknown fields of a manifest, if it is otherwise valid.
fn unknown_fields(kind: Kind, manifest: &Value) -> Result<Vec<Problem>, Refusal> {
    let problems = check(kind, manifest, Strictness::Manifest);
    // Rarely reached, so a second validation is cheaper than to mark each problem.
    let wrong = match problems.is_empty() {
        true => Vec::new(),
        false => check(kind, manifest, Strictness::Server),
    };
    if wrong.is_empty() { Ok(problems) } else { Err(Refusal(wrong)) }
}

fn complete(kind: Kind, object: &mut Value, node: &str) {
    let Some(object) = object.as_object_mut() else { return };
    object.insert("apiVersion".into(), kind.api_version().into());
    object.insert("kind".into(), kind.name().into());
    let meta = member(object, "metadata");
    match kind.namespaced() {
        true => fill(meta, "namespace", DEFAULT_NAMESPACE),
        false => _ = meta.remove("namespace"),
    }
    match kind {
        Kind::Namespace => {
            let name = meta.get("name").cloned().unwrap_or_default();
            member(meta, "labels").insert(NAME_LABEL.into(), name);
        }
        Kind::Pod => {
            let spec = member(object, "spec");
            fill(spec, "serviceAccountName", "default");
            fill(spec, "nodeName", node);
            let status = member(object, "status");
            if let Some(ip) = status.get("podIP").cloned()
                && status.get("podIPs").is_none_or(Value::is_null)
            {
                status.insert("podIPs".into(), json!([{"ip": ip}]));
            }
        }
        _ => {}
    }
}

/// Returns the object in a member, creating it if it does not exist.
fn member<'o>(object: &'o mut Map<String, Value>, name: &str) -> &'o mut Map<String, Value> {
    let member = object.entry(name).or_insert(Value::Null);
    if !member.is_object() {
        *member = Value::Object(Map::new());
    }
    match member {
        Value::Object(member) => member,
        _ => unreachable!("it was made one"),
    }
}

fn fill(object: &mut Map<String, Value>, name: &str, text: &str) {
    let there = object.get(name).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    if !there && !text.is_empty() {
        object.insert(name.into(), text.into());
    }
}
