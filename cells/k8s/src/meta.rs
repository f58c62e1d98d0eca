//! What all kinds have in common: type and metadata.

use std::collections::BTreeMap;

use crate::field::Field;
use k8s_types::names;

/// Members of `metadata`, as Kubernetes 1.34 has them.
const MEMBERS: &[&str] = &[
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

/// The namespace of objects that name none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// `metadata` of an object: what the agent uses of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct ObjectMeta {
    /// The object's name.
    pub name: String,
    /// Its namespace; empty for kinds that are in none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// What tells it from an earlier object of that name; empty if the source has no such thing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Reads `metadata` of a manifest.
pub(crate) fn read(
    manifest: Field<'_>,
    namespaced: bool,
    rule: fn(&str) -> Result<(), &'static str>,
) -> ObjectMeta {
    let meta = manifest.get("metadata");
    meta.only(MEMBERS);
    let name = meta.get("name").required(|name| name.named(rule));
    let namespace = meta.get("namespace");
    let namespace = match namespaced {
        true => namespace.named(names::dns_label).or((!namespace.present()).then_some(DEFAULT_NAMESPACE)),
        false => None,
    };
    ObjectMeta {
        name: name.unwrap_or_default().to_owned(),
        namespace: namespace.unwrap_or_default().to_owned(),
        uid: meta.get("uid").string().unwrap_or_default().to_owned(),
        labels: meta.get("labels").strings(names::qualified_name, names::label_value),
        annotations: meta
            .get("annotations")
            .strings(|key| names::qualified_name(&key.to_ascii_lowercase()), |_| Ok(())),
    }
}

/// Reports another kind or version than this one. A part of a list that has its kind written on it may leave them out.
pub(crate) fn check_type(manifest: Field<'_>, version: &'static str, kind: &'static str) {
    _ = manifest.get("apiVersion").one_of(&[version]);
    _ = manifest.get("kind").one_of(&[kind]);
}
