//! Selectors of fields.

use serde_json::Value;

/// Conditions on fields, all of which must hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct FieldSelector(Vec<Condition>);

#[derive(Clone, Debug)]
struct Condition {
    path: String,
    equal: bool,
    value: String,
}

impl FieldSelector {
    /// Reads `spec.nodeName=n1,metadata.namespace!=kube-system`.
    pub(crate) fn parse(text: &str) -> Result<FieldSelector, String> {
        let conditions = text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(|part| {
            let (path, equal, value) = match part.split_once("!=") {
                Some((path, value)) => (path, false, value),
                None => match part.split_once("==").or_else(|| part.split_once('=')) {
                    Some((path, value)) => (path, true, value),
                    None => return Err(format!("invalid selector: '{text}'; can't understand '{part}'")),
                },
            };
            Ok(Condition { path: path.trim().to_owned(), equal, value: value.trim().to_owned() })
        });
        conditions.collect::<Result<_, _>>().map(FieldSelector)
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|condition| (field(object, &condition.path) == condition.value) == condition.equal)
    }
}

/// Returns the text at a path; empty if there is none.
fn field(object: &Value, path: &str) -> String {
    let found = path.split('.').try_fold(object, |value, name| value.get(name));
    match found {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_compared_as_texts() {
        let pod = json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n1", "hostNetwork": true, "priority": 7}});
        let matches = |text: &str| FieldSelector::parse(text).unwrap().matches(&pod);
        assert!(matches("") && matches("spec.nodeName=n1") && matches("spec.nodeName==n1,metadata.name=a"));
        assert!(matches(" spec.nodeName != n2 , spec.hostNetwork=true,spec.priority=7"));
        assert!(matches("spec.nothing=") && matches("status.podIP!=10.0.0.1"));
        assert!(!matches("spec.nodeName=n2") && !matches("spec.nodeName!=n1"));
        assert!(!matches("spec.nodeName=n1,metadata.name=b"));
        assert_eq!(
            FieldSelector::parse("spec.nodeName").unwrap_err(),
            "invalid selector: 'spec.nodeName'; can't understand 'spec.nodeName'"
        );
    }
}
