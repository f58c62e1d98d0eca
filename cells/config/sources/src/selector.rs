//! Which nodes a CiliumNodeConfig is for.

use k8s_types::{LabelSelector, LabelSelectorRequirement, StringMap};

/// Whether all conditions hold; the error is what is wrong with the selector.
pub(crate) fn selects(selector: &LabelSelector, labels: &StringMap) -> Result<bool, String> {
    let equal = selector.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
    selector
        .match_expressions
        .iter()
        .try_fold(equal, |so_far, condition| Ok(holds(condition, labels)? && so_far))
}

fn holds(condition: &LabelSelectorRequirement, labels: &StringMap) -> Result<bool, String> {
    let LabelSelectorRequirement { key, operator, values } = condition;
    let value = labels.get(key);
    let among = || value.is_some_and(|value| values.contains(value));
    let wrong =
        |problem: &str| Err(format!("spec.nodeSelector.matchExpressions: {operator} of {key:?} {problem}"));
    match (operator.as_str(), values.is_empty()) {
        ("In" | "NotIn", true) => wrong("has no values"),
        ("Exists" | "DoesNotExist", false) => wrong("must have no values"),
        ("In", _) => Ok(among()),
        ("NotIn", _) => Ok(!among()),
        ("Exists", _) => Ok(value.is_some()),
        ("DoesNotExist", _) => Ok(value.is_none()),
        _ => wrong("is no operator: use In, NotIn, Exists or DoesNotExist"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(selector: &str) -> Result<bool, String> {
        let labels = [("zone", "a"), ("edge", "")].into_iter().collect();
        selects(&serde_json::from_str(selector).unwrap(), &labels)
    }

    fn expression(text: &str) -> Result<bool, String> {
        matches(&format!(r#"{{"matchExpressions":[{text}]}}"#))
    }

    #[test]
    fn conditions_are_those_of_kubernetes() {
        assert_eq!(matches("{}"), Ok(true));
        assert_eq!(matches(r#"{"matchLabels":{"zone":"a","edge":""}}"#), Ok(true));
        assert_eq!(matches(r#"{"matchLabels":{"zone":"a","disk":""}}"#), Ok(false));
        for (text, holds) in [
            (r#"{"key":"zone","operator":"In","values":["b","a"]}"#, true),
            (r#"{"key":"zone","operator":"NotIn","values":["a"]}"#, false),
            (r#"{"key":"disk","operator":"NotIn","values":["a"]}"#, true),
            (r#"{"key":"edge","operator":"Exists"}"#, true),
            (r#"{"key":"edge","operator":"DoesNotExist"}"#, false),
        ] {
            assert_eq!(expression(text), Ok(holds), "{text}");
        }
        assert!(
            expression(r#"{"key":"zone","operator":"Is","values":["a"]}"#).unwrap_err().contains("use In,")
        );
        assert!(expression(r#"{"key":"zone","operator":"In"}"#).unwrap_err().contains("has no values"));
    }
}
