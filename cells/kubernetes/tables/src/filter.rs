//! Evaluates selections, for sources without a server that does so.

use serde_json::Value;

use k8s_types::selector::{FieldSelector, LabelRequirements, SelectorError};
use k8s_types::{Key, Selection, SmolStr, SourceError};

/// A parsed selection.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    namespace: Option<SmolStr>,
    fields: FieldSelector,
    labels: LabelRequirements,
}

impl Filter {
    pub(crate) fn new(selection: &Selection) -> Result<Filter, SourceError> {
        let error = |error: SelectorError| SourceError(error.to_string());
        Ok(Filter {
            namespace: selection.namespace.clone(),
            fields: selection.fields.parse().map_err(error)?,
            labels: selection.labels.parse().map_err(error)?,
        })
    }

    /// Whether an object is selected.
    pub(crate) fn has(&self, key: &Key, json: &[u8]) -> bool {
        if self.namespace.as_ref().is_some_and(|namespace| *namespace != key.namespace) {
            return false;
        }
        // Most selections have neither: do not parse the object for them.
        if self.fields.is_empty() && self.labels.is_empty() {
            return true;
        }
        let Ok(object) = serde_json::from_slice::<Value>(json) else { return false };
        let labels = &object["metadata"]["labels"];
        self.fields.matches_object(&object) && self.labels.matches(|key| labels.get(key)?.as_str())
    }
}

#[cfg(test)]
mod tests {
    use k8s_types::Kind;

    use super::*;

    const POD: &[u8] =
        br#"{"metadata": {"name": "a", "labels": {"app": "web", "env": "x"}}, "spec": {"nodeName": "n1"}}"#;

    #[test]
    fn selections_select_as_a_server() {
        let all = || Selection::all(Kind::Pod);
        let has = |selection: Selection| Filter::new(&selection).unwrap().has(&Key::new("shop", "a"), POD);
        assert!(has(all()) && has(all().in_namespace("shop")) && !has(all().in_namespace("other")));
        for (fields, selected) in [("metadata.name=a,spec.nodeName=n1", true), ("spec.nodeName!=n1", false)] {
            assert_eq!(has(all().with_fields(fields)), selected, "{fields}");
            assert!(!has(all().with_fields(fields).with_labels("app!=web")), "{fields}");
        }
        for (labels, selected) in [("app in (db, web),env", true), ("!app", false)] {
            assert_eq!(has(all().with_labels(labels)), selected, "{labels}");
        }
        assert!(Filter::new(&all().with_fields("spec")).is_err());
        assert!(Filter::new(&all().with_labels("a of (b)")).is_err());
    }
}
