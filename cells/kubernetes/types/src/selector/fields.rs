//! Selectors of fields: `metadata.name=a,spec.nodeName!=n1`.

use std::borrow::Cow;
use std::str::FromStr;

use serde_json::Value;

use super::SelectorError;

/// Requirements on fields of an object, all of which must hold; an empty selector selects every object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    path: String,
    /// Whether the field must equal the value, or must differ from it.
    equal: bool,
    value: String,
}

impl FieldSelector {
    /// Whether there are no requirements.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the paths of the fields that the selector names.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|requirement| requirement.path.as_str())
    }

    /// Whether an object is selected, with its fields returned by `field`. A missing field equals the empty value.
    pub fn matches<'f>(&self, field: impl Fn(&str) -> Cow<'f, str>) -> bool {
        self.0
            .iter()
            .all(|requirement| (field(&requirement.path) == requirement.value.as_str()) == requirement.equal)
    }

    /// Whether an object is selected. Numbers and booleans are compared as JSON writes them.
    pub fn matches_object(&self, object: &Value) -> bool {
        self.matches(|path| match path.split('.').try_fold(object, |value, name| value.get(name)) {
            None | Some(Value::Null) => Cow::Borrowed(""),
            Some(Value::String(text)) => Cow::Borrowed(text.as_str()),
            Some(other) => Cow::Owned(other.to_string()),
        })
    }
}

/// Reads `FIELD=VALUE`, `FIELD==VALUE` and `FIELD!=VALUE` between commas. Blanks around fields and values are skipped; in
/// a value a backslash escapes a comma, an equals sign and itself.
impl FromStr for FieldSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<FieldSelector, SelectorError> {
        let terms = terms(text).into_iter().filter(|term| !term.trim().is_empty());
        let requirement = |term: &str| {
            let invalid =
                || SelectorError(format!("invalid selector: '{text}'; can't understand '{}'", term.trim()));
            let (path, equal, value) = equation(term).ok_or_else(invalid)?;
            let value = unescape(value.trim()).ok_or_else(invalid)?;
            Ok(Requirement { path: path.trim().to_owned(), equal, value })
        };
        terms.map(requirement).collect::<Result<_, _>>().map(FieldSelector)
    }
}

/// Splits at commas that are not escaped.
fn terms(text: &str) -> Vec<&str> {
    let mut is_escaped = false;
    let is_separator = |c: char| {
        let separates = c == ',' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        separates
    };
    text.split(is_separator).collect()
}

/// Splits a term at its first operator; returns the field, whether it must be equal, and the value as written.
fn equation(term: &str) -> Option<(&str, bool, &str)> {
    let (path, value) = term.split_once('=')?;
    let (path, equal) = match path.strip_suffix('!') {
        Some(path) => (path, false),
        None => (path, true),
    };
    let value = if equal { value.strip_prefix('=').unwrap_or(value) } else { value };
    (!path.trim().is_empty()).then_some((path, equal, value))
}

/// Returns the value; none for an invalid escape, or an equals sign that is not escaped.
fn unescape(value: &str) -> Option<String> {
    let mut text = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(c) = characters.next() {
        text.push(match c {
            '\\' => characters.next().filter(|c| matches!(c, '\\' | ',' | '='))?,
            '=' => return None,
            c => c,
        });
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_compared_as_texts() {
        let pod = json!({
            "metadata": {"name": "a", "annotations": {"note": "x,y=z\\"}},
            "spec": {"nodeName": "n1", "hostNetwork": true, "priority": 7},
        });
        let matches = |text: &str| text.parse::<FieldSelector>().unwrap().matches_object(&pod);
        for selector in [
            "",
            ",",
            "spec.nodeName=n1",
            "spec.nodeName==n1,metadata.name=a",
            " spec.nodeName != n2 , spec.hostNetwork=true,spec.priority=7",
            "spec.nothing=",
            "status.podIP!=10.0.0.1",
            r"metadata.annotations.note=x\,y\=z\\",
        ] {
            assert!(matches(selector), "{selector}");
        }
        for selector in ["spec.nodeName=n2", "spec.nodeName!=n1", "spec.nodeName=n1,metadata.name=b"] {
            assert!(!matches(selector), "{selector}");
        }
    }

    #[test]
    fn errors_name_the_term() {
        for (text, term) in
            [("a=b, spec.nodeName", "spec.nodeName"), ("=a", "=a"), ("a=b=c", "a=b=c"), (r"a=\b", r"a=\b")]
        {
            assert_eq!(
                text.parse::<FieldSelector>().unwrap_err().to_string(),
                format!("invalid selector: '{text}'; can't understand '{term}'")
            );
        }
    }
}
