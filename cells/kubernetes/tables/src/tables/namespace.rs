//! Table `k8s-namespaces`.

use std::time::SystemTime;

use serde::{Serialize, Serializer};

use k8s_types::core::Namespace;
use k8s_types::{SmolStr, StringMap};

use crate::row::{Row, Tabled, time};

impl Tabled for Namespace {
    const TABLE: &'static str = "k8s-namespaces";

    fn columns() -> &'static [&'static str] {
        &["Namespace", "Labels", "Annotations", "Age"]
    }

    fn cells(row: &Row<Self>) -> Vec<String> {
        let meta = &row.metadata;
        vec![meta.name.to_string(), pairs(&meta.labels), pairs(&meta.annotations), row.age()]
    }

    /// Serializes the fields that Cilium's row has, not the object.
    fn write<S: Serializer>(row: &Row<Self>, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Shown<'r> {
            name: &'r SmolStr,
            #[serde(skip_serializing_if = "is_empty")]
            labels: &'r StringMap,
            #[serde(skip_serializing_if = "is_empty")]
            annotations: &'r StringMap,
            #[serde(serialize_with = "time")]
            updated_at: SystemTime,
        }
        let meta = &row.metadata;
        let (name, labels, annotations) = (&meta.name, &meta.labels, &meta.annotations);
        Shown { name, labels, annotations, updated_at: row.updated_at }.serialize(to)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_empty(map: &&StringMap) -> bool {
    map.is_empty()
}

/// Formats a map as `a=b, c=d`.
fn pairs(map: &StringMap) -> String {
    map.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use statedb::TableDisplay;

    use super::*;

    #[test]
    fn a_namespace_is_printed_as_by_cilium() {
        let json = br#"{"metadata": {"name": "shop", "labels": {"z": "1", "a": "2"}, "annotations": {"Ex.com/B": "c"}}}"#;
        let row = Row::of(k8s_types::decode::<Namespace>(json).unwrap());
        assert_eq!(&row.row()[..3], ["shop", "a=2, z=1", "Ex.com/B=c"]);
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            r#"{"name":"shop","labels":{"a":"2","z":"1"},"annotations":{"Ex.com/B":"c"},"updatedAt":"1970-01-01T00:00:00Z"}"#
        );
        let plain = Row::of(k8s_types::decode::<Namespace>(br#"{"metadata": {"name": "shop"}}"#).unwrap());
        assert_eq!(
            serde_json::to_string(&plain).unwrap(),
            r#"{"name":"shop","updatedAt":"1970-01-01T00:00:00Z"}"#
        );
    }
}
