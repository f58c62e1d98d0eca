//! Table `k8s-namespaces`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::Value;
use statedb::{Table, age};

use crate::field::decode;
use crate::{Refusal, meta};

/// The label that every namespace has, with its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// A row of `k8s-namespaces`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Table)]
#[table(name = "k8s-namespaces")]
#[serde(rename_all = "camelCase")]
pub struct Namespace {
    /// Its name.
    #[primary(name = "name")]
    #[column("Namespace")]
    pub name: Arc<str>,
    /// Its labels, the one with its name included.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// The source that has it.
    #[serde(skip)]
    #[column(skip)]
    pub source: Arc<str>,
    /// Where it was read: file and document.
    #[serde(skip)]
    #[column(skip)]
    pub origin: String,
    /// When the row was last written.
    #[serde(serialize_with = "crate::pod::time")]
    #[column("Age", with = |time: &Option<SystemTime>| time.map(age::since).unwrap_or_default())]
    pub updated_at: Option<SystemTime>,
}

impl Namespace {
    /// Reads a manifest. The label with the name is added, as the API server does.
    pub fn decode(manifest: &Value) -> Result<Namespace, Refusal> {
        let meta = decode(manifest, |manifest| {
            meta::check_type(manifest, "v1", "Namespace");
            meta::read(manifest, false, k8s_types::names::dns_label)
        })?;
        let mut labels = meta.labels;
        labels.insert(NAME_LABEL.to_owned(), meta.name.clone());
        Ok(Namespace {
            name: meta.name.into(),
            labels,
            annotations: meta.annotations,
            ..Namespace::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use statedb::TableSpec;

    use super::*;

    #[test]
    fn a_namespace_has_the_label_of_its_name() {
        let manifest = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "shop", "labels": {"team": "a", NAME_LABEL: "other"}, "annotations": {"Ex.com/B": "c"}},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
        });
        let namespace = Namespace::decode(&manifest).unwrap();
        let row = namespace.row();
        assert_eq!(Namespace::columns(), ["Namespace", "Labels", "Annotations", "Age"]);
        assert_eq!((Namespace::NAME, Namespace::PRIMARY, row.len()), ("k8s-namespaces", "name", 4));
        assert_eq!(&row[..3], ["shop", "kubernetes.io/metadata.name=shop, team=a", "Ex.com/B=c"]);
    }

    #[test]
    fn wrong_fields_are_told_all_at_once() {
        let manifest = json!({
            "apiVersion": "v2", "kind": "Namespace",
            "metadata": {"name": "Shop", "lables": {}, "labels": {"a b": "c", "d": 1, "e": "-"}},
        });
        let refusal = Namespace::decode(&manifest).unwrap_err();
        let paths: Vec<&str> = refusal.0.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "apiVersion",
                "metadata.lables",
                "metadata.name",
                "metadata.labels[\"a b\"]",
                "metadata.labels.d",
                "metadata.labels.e"
            ]
        );
        assert_eq!(
            Namespace::decode(&json!({"kind": "Namespace", "metadata": {}})).unwrap_err().to_string(),
            "metadata.name: is missing"
        );
    }
}
