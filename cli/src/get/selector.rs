//! `-l` and `--field-selector`.

use std::str::FromStr;

use k8s_types::ObjectMeta;

/// Objects by their labels: all terms must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Labels(Vec<Term>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Exists,
    Missing,
    /// The label is there and one of these.
    In(Vec<String>),
    /// The label is missing or none of these.
    NotIn(Vec<String>),
}

impl Labels {
    /// Whether an object is selected.
    pub(super) fn select(&self, object: &ObjectMeta) -> bool {
        self.0.iter().all(|term| {
            let value = object.labels.get(&term.key);
            let among = |values: &[String]| value.is_some_and(|value| values.iter().any(|one| one == value));
            match &term.test {
                Test::Exists => value.is_some(),
                Test::Missing => value.is_none(),
                Test::In(values) => among(values),
                Test::NotIn(values) => !among(values),
            }
        })
    }
}

impl FromStr for Labels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        terms(text).map(term).collect::<Result<_, _>>().map(Labels)
    }
}

/// The parts between commas that are in no brackets.
fn terms(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    let parts = text.split(move |character| {
        depth += i32::from(character == '(') - i32::from(character == ')');
        character == ',' && depth == 0
    });
    parts.map(str::trim).filter(|term| !term.is_empty())
}

fn term(text: &str) -> Result<Term, String> {
    let wrong =
        || format!("{text:?} selects nothing; want KEY, !KEY, KEY=VALUE, KEY!=VALUE or KEY in (VALUE,...)");
    let one = |value: &str| vec![value.trim().to_owned()];
    let (key, test) = if let Some(key) = text.strip_prefix('!') {
        (key, Test::Missing)
    } else if let Some((key, value)) = text.split_once("!=") {
        (key, Test::NotIn(one(value)))
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (key, Test::In(one(value)))
    } else if let Some((words, values)) = text.split_once('(') {
        let values = values.strip_suffix(')').ok_or_else(wrong)?;
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        match words.split_whitespace().collect::<Vec<_>>()[..] {
            [key, "in"] => (key, Test::In(values)),
            [key, "notin"] => (key, Test::NotIn(values)),
            _ => return Err(wrong()),
        }
    } else {
        (text, Test::Exists)
    };
    let key = key.trim();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if key.is_empty() || !key.chars().all(is_name) {
        return Err(wrong());
    }
    Ok(Term { key: key.to_owned(), test })
}

/// Objects by name and namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fields(Vec<(Field, bool, String)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Namespace,
}

impl Fields {
    /// Whether an object is selected.
    pub(super) fn select(&self, object: &ObjectMeta) -> bool {
        self.0.iter().all(|(field, equal, value)| {
            let found = match field {
                Field::Name => &object.name,
                Field::Namespace => &object.namespace,
            };
            (found == value) == *equal
        })
    }
}

impl FromStr for Fields {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let term = |text: &str| {
            let unequal = text.split_once("!=").map(|(field, value)| (field, false, value));
            let equal = || text.split_once("==").or_else(|| text.split_once('='));
            let term = unequal.or_else(|| equal().map(|(field, value)| (field, true, value)));
            let (field, equal, value) = term.ok_or_else(|| format!("{text:?} is no FIELD=VALUE"))?;
            let field = match field {
                "metadata.name" => Field::Name,
                "metadata.namespace" => Field::Namespace,
                other => {
                    return Err(format!(
                        "{other:?} is not supported, metadata.name and metadata.namespace are"
                    ));
                }
            };
            Ok((field, equal, value.to_owned()))
        };
        terms(text).map(term).collect::<Result<_, _>>().map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object() -> ObjectMeta {
        let meta =
            json!({"name": "web", "namespace": "shop", "labels": {"app": "web", "k8s.io/tier": "front"}});
        serde_json::from_value(meta).unwrap()
    }

    #[test]
    fn labels_select_as_with_kubectl() {
        for (text, selected) in [
            ("", true),
            ("app=web", true),
            ("app==web", true),
            ("app = web , k8s.io/tier", true),
            ("app=db", false),
            ("none=web", false),
            ("app!=db,none!=x", true),
            ("app!=web", false),
            ("!none", true),
            ("!app", false),
            ("app in (db, web),!none", true),
            ("app in (db)", false),
            ("none in (db)", false),
            ("app notin (db),none notin (x)", true),
            ("app notin (web,db)", false),
        ] {
            assert_eq!(text.parse::<Labels>().unwrap().select(&object()), selected, "{text}");
        }
        for wrong in ["=web", "app in db", "app in (db", "app of (db)", "a b", "!"] {
            let error = wrong.parse::<Labels>().unwrap_err();
            assert!(error.contains("want KEY"), "{wrong}: {error}");
        }
    }

    #[test]
    fn fields_are_name_and_namespace() {
        let select = |text: &str| text.parse::<Fields>().unwrap().select(&object());
        assert!(select("metadata.name=web,metadata.namespace==shop") && select("metadata.name!=db"));
        assert!(!select("metadata.name=db") && !select("metadata.namespace!=shop"));
        assert_eq!(
            "spec.nodeName=a".parse::<Fields>().unwrap_err(),
            "\"spec.nodeName\" is not supported, metadata.name and metadata.namespace are"
        );
        assert_eq!("a".parse::<Fields>().unwrap_err(), "\"a\" is no FIELD=VALUE");
    }
}
