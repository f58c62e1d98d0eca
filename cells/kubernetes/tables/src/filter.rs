//! Which objects a selection means, for sources that have no server to ask.

use serde_json::Value;

use k8s_types::{Key, Kind, Selection, SmolStr, SourceError};

/// A selection, taken apart.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    namespace: Option<SmolStr>,
    fields: Vec<Field>,
    labels: Vec<Label>,
}

/// `spec.nodeName=n1`, `!=` for others.
#[derive(Debug, Clone)]
struct Field {
    path: Vec<String>,
    equal: bool,
    value: String,
}

/// A condition on a label: whether it is there with one of these values; any of them for none.
#[derive(Debug, Clone, PartialEq)]
struct Label {
    key: String,
    wanted: bool,
    values: Option<Vec<String>>,
}

impl Label {
    /// Whether it holds for an object whose label has this value.
    fn holds(&self, found: Option<&str>) -> bool {
        let is = found.is_some_and(|found| {
            self.values.as_ref().is_none_or(|values| values.iter().any(|value| value == found))
        });
        is == self.wanted
    }
}

impl Filter {
    pub(crate) fn new(what: &Selection) -> Result<Filter, SourceError> {
        let wrong = |selector: &str, part: &str| {
            SourceError(format!("'{part}' in the selector '{selector}' is none; give name=value"))
        };
        let parts =
            |text: &SmolStr| split(text).into_iter().map(str::trim).map(str::to_owned).collect::<Vec<_>>();
        let fields = parts(&what.fields)
            .into_iter()
            .map(|part| field(&part).ok_or_else(|| wrong(&what.fields, &part)));
        let labels = parts(&what.labels)
            .into_iter()
            .map(|part| label(&part).ok_or_else(|| wrong(&what.labels, &part)));
        Ok(Filter {
            namespace: what.namespace.clone(),
            fields: fields.collect::<Result<_, _>>()?,
            labels: labels.collect::<Result<_, _>>()?,
        })
    }

    /// Whether it means this object.
    pub(crate) fn has(&self, key: &Key, json: &[u8]) -> bool {
        if self.namespace.as_ref().is_some_and(|namespace| *namespace != key.namespace) {
            return false;
        }
        if self.fields.is_empty() && self.labels.is_empty() {
            return true;
        }
        let Ok(object) = serde_json::from_slice::<Value>(json) else { return false };
        let field = |field: &Field| {
            let found = field.path.iter().try_fold(&object, |value, name| value.get(name));
            (found.and_then(Value::as_str).unwrap_or_default() == field.value) == field.equal
        };
        let labels = &object["metadata"]["labels"];
        let label = |label: &Label| label.holds(labels.get(&label.key).and_then(Value::as_str));
        self.fields.iter().all(field) && self.labels.iter().all(label)
    }
}

/// Whether labels are those that a selector such as `rack in (r6, r7),!old,tier=web` means; an error tells of one that
/// cannot be read.
pub fn selects<'l>(selector: &str, label: impl Fn(&str) -> Option<&'l str>) -> Result<bool, SourceError> {
    let filter = Filter::new(&Selection::all(Kind::Node).with_labels(selector))?;
    Ok(filter.labels.iter().all(|wanted| wanted.holds(label(&wanted.key))))
}

/// Cuts at commas that are in no brackets.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let at_comma = |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    };
    text.split(at_comma).filter(|part| !part.trim().is_empty()).collect()
}

/// Name, whether it is to be equal, and value.
fn equation(part: &str) -> Option<(&str, bool, &str)> {
    let (name, equal, value) = match part.split_once("!=") {
        Some((name, value)) => (name, false, value),
        None => {
            let (name, value) = part.split_once('=')?;
            (name, true, value.strip_prefix('=').unwrap_or(value))
        }
    };
    Some((name.trim(), equal, value.trim())).filter(|(name, ..)| !name.is_empty())
}

fn field(part: &str) -> Option<Field> {
    let (path, equal, value) = equation(part)?;
    Some(Field { path: path.split('.').map(str::to_owned).collect(), equal, value: value.to_owned() })
}

fn label(part: &str) -> Option<Label> {
    if let Some((key, equal, value)) = equation(part) {
        return Some(Label { key: key.to_owned(), wanted: equal, values: Some(vec![value.to_owned()]) });
    }
    if let Some(list) = part.strip_suffix(')') {
        let (before, values) = list.split_once('(')?;
        let (key, operator) = before.trim().split_once(char::is_whitespace)?;
        let wanted = match operator.trim() {
            "in" => true,
            "notin" => false,
            _ => return None,
        };
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        return Some(Label { key: key.to_owned(), wanted, values: Some(values) });
    }
    let (key, wanted) = match part.strip_prefix('!') {
        Some(key) => (key.trim(), false),
        None => (part, true),
    };
    let good = !key.is_empty() && !key.contains(char::is_whitespace);
    good.then(|| Label { key: key.to_owned(), wanted, values: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &[u8] =
        br#"{"metadata": {"name": "a", "labels": {"app": "web", "env": "x"}}, "spec": {"nodeName": "n1"}}"#;

    fn has(what: Selection) -> bool {
        Filter::new(&what).unwrap().has(&Key::new("shop", "a"), POD)
    }

    #[test]
    fn selections_mean_what_they_mean_to_a_server() {
        let all = || Selection::all(Kind::Pod);
        assert!(has(all()) && has(all().in_namespace("shop")) && !has(all().in_namespace("other")));
        for (fields, means) in [
            ("metadata.name=a", true),
            ("metadata.name==b", false),
            ("metadata.name=a,spec.nodeName=n1", true),
            ("spec.nodeName!=n1", false),
            ("spec.host=", true),
        ] {
            assert_eq!(has(all().with_fields(fields)), means, "{fields}");
        }
        for (labels, means) in [
            ("app=web", true),
            ("app in (db, web),env", true),
            ("app notin (db,web)", false),
            ("!app", false),
            ("!other,env!=y", true),
            ("other!=x", true),
        ] {
            assert_eq!(has(all().with_labels(labels)), means, "{labels}");
        }
        let label = |name: &str| Some("r7").filter(|_| name == "rack");
        assert!(selects("rack in (r6, r7)", label).unwrap() && selects("!old,rack=r7", label).unwrap());
        assert!(!selects("rack notin (r7)", label).unwrap() && selects("rack of (r7)", label).is_err());
        assert!(Filter::new(&all().with_fields("spec")).is_err());
        assert!(Filter::new(&all().with_labels("a of (b)")).is_err());
    }
}
