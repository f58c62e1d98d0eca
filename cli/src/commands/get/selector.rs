//! `-l` and `--field-selector`.

use std::borrow::Cow;
use std::str::FromStr;

use k8s_types::ObjectMeta;
use k8s_types::selector::{FieldSelector, SelectorError};

/// A field selector on name and namespace, the fields that the API server supports for every kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetadataSelector(FieldSelector);

impl MetadataSelector {
    /// Whether an object is selected.
    pub(super) fn matches(&self, object: &ObjectMeta) -> bool {
        self.0.matches(|path| Cow::Borrowed(if path == NAME { &object.name } else { &object.namespace }))
    }
}

const NAME: &str = "metadata.name";
const NAMESPACE: &str = "metadata.namespace";

impl FromStr for MetadataSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let selector: FieldSelector = text.parse().map_err(|error: SelectorError| error.to_string())?;
        if let Some(other) = selector.paths().find(|path| ![NAME, NAMESPACE].contains(path)) {
            return Err(format!("{other:?} is not supported, {NAME} and {NAMESPACE} are"));
        }
        Ok(MetadataSelector(selector))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_name_and_namespace() {
        let object: ObjectMeta = serde_json::from_value(json!({"name": "web", "namespace": "shop"})).unwrap();
        let matches = |text: &str| text.parse::<MetadataSelector>().unwrap().matches(&object);
        assert!(matches("metadata.name=web,metadata.namespace==shop") && matches("metadata.name!=db"));
        assert!(!matches("metadata.name=db") && !matches("metadata.namespace!=shop"));
        assert_eq!(
            "spec.nodeName=a".parse::<MetadataSelector>().unwrap_err(),
            "\"spec.nodeName\" is not supported, metadata.name and metadata.namespace are"
        );
        assert_eq!(
            "a".parse::<MetadataSelector>().unwrap_err(),
            "invalid selector: 'a'; can't understand 'a'"
        );
    }
}
