//! Requirements on labels, in the grammar of Kubernetes, with keys that may name a source: `k8s:app in (a, b), !x`.

use super::BadFilter;

/// Requirements, all of which must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    /// The source; `None` for any.
    source: Option<String>,
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Exists,
    Missing,
    In(Vec<String>),
    NotIn(Vec<String>),
}

impl Selector {
    /// Whether labels of the form `source:key=value` or `key=value` hold. Linear in their number.
    pub(super) fn matches(&self, labels: &[String]) -> bool {
        self.0.iter().all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    fn matches(&self, labels: &[String]) -> bool {
        let mut values = labels.iter().filter_map(|label| self.value(label)).peekable();
        match &self.test {
            Test::Exists => values.peek().is_some(),
            Test::Missing => values.peek().is_none(),
            Test::In(expected) => values.any(|value| expected.iter().any(|one| one == value)),
            Test::NotIn(excluded) => values.all(|value| excluded.iter().all(|one| one != value)),
        }
    }

    /// Returns the value of a label with this key.
    fn value<'a>(&self, label: &'a str) -> Option<&'a str> {
        let (name, value) = label.split_once('=').unwrap_or((label, ""));
        let (source, key) = split_source(name);
        let is_source = self.source.as_deref().is_none_or(|expected| source == Some(expected));
        (is_source && key == self.key).then_some(value)
    }
}

/// Splits a key at its first colon.
fn split_source(name: &str) -> (Option<&str>, &str) {
    name.split_once(':').map_or((None, name), |(source, key)| (Some(source), key))
}

/// Parses requirements between commas.
pub(super) fn parse(field: &'static str, text: &str) -> Result<Selector, BadFilter> {
    let bad = |problem: &str| BadFilter { field, problem: format!("{text:?} {problem}") };
    let mut requirements = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        // A comma within parentheses separates values.
        let open = rest.find('(').unwrap_or(usize::MAX);
        let end = match rest.find(',').unwrap_or(rest.len()) {
            comma if comma < open => comma,
            _ if open == usize::MAX => rest.len(),
            _ => rest.find(')').ok_or_else(|| bad("has no closing parenthesis"))? + 1,
        };
        let (one, after) = rest.split_at(end);
        requirements.push(requirement(one.trim()).map_err(bad)?);
        rest = match after.trim_start().strip_prefix(',') {
            Some(next) if next.trim().is_empty() => return Err(bad("ends with a comma")),
            Some(next) => next.trim_start(),
            None if after.trim().is_empty() => "",
            None => return Err(bad("has text behind the values")),
        };
    }
    Ok(Selector(requirements))
}

fn requirement(text: &str) -> Result<Requirement, &'static str> {
    let (name, test) = if let Some(name) = text.strip_prefix('!') {
        (name, Test::Missing)
    } else if let Some((name, value)) = text.split_once("!=") {
        (name, Test::NotIn(vec![value.trim().to_owned()]))
    } else if let Some((name, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (name, Test::In(vec![value.trim().to_owned()]))
    } else if let Some(list) = text.strip_suffix(')') {
        let (head, values) = list.split_once('(').ok_or("has no opening parenthesis")?;
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        match head.trim_end().rsplit_once(char::is_whitespace) {
            Some((name, "in")) => (name, Test::In(values)),
            Some((name, "notin")) => (name, Test::NotIn(values)),
            _ => return Err("has values without in or notin"),
        }
    } else {
        (text, Test::Exists)
    };
    let name = name.trim();
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ':');
    let (source, key) = split_source(name);
    if key.is_empty() || !name.chars().all(is_valid) {
        return Err("has a key that no label can have");
    }
    Ok(Requirement { source: source.map(str::to_owned), key: key.to_owned(), test })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_those_of_kubernetes_with_sources() {
        let labels = ["k8s:app=web", "reserved:host", "k8s:io.kubernetes.pod.namespace=shop", "gen:a.b/c=1"];
        let labels = labels.map(str::to_owned);
        let cases = [
            ("", true),
            ("app", true),
            ("k8s:app=web", true),
            ("any:app=web", false),
            ("app == web, reserved:host", true),
            ("reserved:app", false),
            ("app!=web", false),
            ("none!=web", true),
            ("!none,!reserved:app", true),
            ("! app", false),
            ("app in (db, web), io.kubernetes.pod.namespace in (shop)", true),
            ("app notin (db,web)", false),
            ("gen:a.b/c=1", true),
            ("app=we", false),
            ("reserved:host=", true),
        ];
        for (text, expected) in cases {
            assert_eq!(parse("x", text).unwrap().matches(&labels), expected, "{text}");
        }
        for text in ["=a", "a=b,", "a in (b", "a (b)", "a b", "in (a)", "a in (b) c", "k8s:=x", "!"] {
            assert!(parse("x", text).is_err(), "{text}");
        }
    }
}
