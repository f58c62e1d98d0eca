//! A label and a set of labels, with the source each came from.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

/// Source of labels that only the agent assigns.
pub const RESERVED: &str = "reserved";
/// Key of the reserved label of the API server's addresses.
pub const KUBE_APISERVER: &str = "kube-apiserver";
/// Source of labels that the agent derives from others.
pub const GENERATED: &str = "cilium-generated";
/// Source of labels that the agent derives from a pod's named ports.
pub const PORTS: &str = "gen";
/// Source of a label that was written without one.
pub const UNSPECIFIED: &str = "unspec";

/// One label. Its `Display` is `source:key=value`, without `=value` if the value is empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Label {
    /// The key.
    pub key: String,
    /// The value, often empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// The origin of the label: `k8s`, `reserved`, `unspec`, ...
    #[serde(default)]
    pub source: String,
}

impl Label {
    /// Returns a label that only the agent assigns, such as `reserved:init`.
    pub fn reserved(key: &str) -> Label {
        Label { key: key.to_owned(), value: String::new(), source: RESERVED.to_owned() }
    }

    /// Parses `[source:]key[=value]`; never fails, as every text is a valid label.
    pub fn parse(text: &str) -> Label {
        let (source, rest) = match (text.find(':'), text.find('=')) {
            (Some(colon), equals) if equals.is_none_or(|equals| colon < equals) => {
                (&text[..colon], &text[colon + 1..])
            }
            // `$host` is Cilium's short form of `reserved:host`.
            _ if text.starts_with('$') => (RESERVED, &text[1..]),
            _ => (UNSPECIFIED, text),
        };
        let source = if source.is_empty() { UNSPECIFIED } else { source };
        let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
        Label { key: key.to_owned(), value: value.to_owned(), source: source.to_owned() }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        LabelRef::from(self).fmt(f)
    }
}

/// A label whose parts are borrowed, of a [`LabelArray`](crate::LabelArray) or a [`Label`]; with the same order and
/// `Display`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelRef<'a> {
    /// The key.
    pub key: &'a str,
    /// The value, often empty.
    pub value: &'a str,
    /// The origin of the label: `k8s`, `reserved`, `unspec`, ...
    pub source: &'a str,
}

impl LabelRef<'_> {
    /// Returns the label with parts of its own.
    pub fn to_label(self) -> Label {
        let LabelRef { key, value, source } = self;
        Label { key: key.to_owned(), value: value.to_owned(), source: source.to_owned() }
    }
}

impl<'a> From<&'a Label> for LabelRef<'a> {
    fn from(label: &'a Label) -> LabelRef<'a> {
        LabelRef { key: &label.key, value: &label.value, source: &label.source }
    }
}

impl fmt::Display for LabelRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.source, self.key)?;
        if !self.value.is_empty() {
            write!(f, "={}", self.value)?;
        }
        Ok(())
    }
}

/// A set of labels with one label per key, in the order of keys.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct Labels(pub BTreeMap<String, Label>);

impl Labels {
    /// Parses the labels of a request. Texts without a key are dropped; of several with one key the last is kept.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Labels {
        texts.into_iter().map(Label::parse).filter(|label| !label.key.is_empty()).collect()
    }

    /// Returns the labels of the given source.
    pub fn of_source(&self, source: &str) -> Labels {
        self.0.values().filter(|label| label.source == source).cloned().collect()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `self` has every label of `wanted`; a wanted label of source `any` or `unspec` matches all sources.
    pub fn contains_all(&self, wanted: &Labels) -> bool {
        wanted.0.values().all(|want| {
            self.0.get(&want.key).is_some_and(|have| {
                have.value == want.value
                    && (matches!(want.source.as_str(), "any" | UNSPECIFIED) || have.source == want.source)
            })
        })
    }

    /// Returns the labels as texts, in the form of the REST API.
    pub fn texts(&self) -> Vec<String> {
        self.0.values().map(Label::to_string).collect()
    }
}

impl FromIterator<Label> for Labels {
    fn from_iter<T: IntoIterator<Item = Label>>(labels: T) -> Labels {
        Labels(labels.into_iter().map(|label| (label.key.clone(), label)).collect())
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.texts().join(","))
    }
}

/// Accepts `null`, which some versions of Cilium write for an empty set.
impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Labels, D::Error> {
        let map = Option::<BTreeMap<String, Label>>::deserialize(deserializer)?;
        Ok(Labels(map.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_parsed_as_by_cilium() {
        for (text, source, key, value) in [
            ("k8s:app=p1", "k8s", "app", "p1"),
            ("app=p1", "unspec", "app", "p1"),
            ("reserved:host", "reserved", "host", ""),
            ("$host", "reserved", "host", ""),
            ("key=with:colon", "unspec", "key", "with:colon"),
            ("k8s:a.b/c=x=y", "k8s", "a.b/c", "x=y"),
            (":lonely", "unspec", "lonely", ""),
        ] {
            let label = Label::parse(text);
            assert_eq!(
                (label.source.as_str(), label.key.as_str(), label.value.as_str()),
                (source, key, value)
            );
        }
        assert_eq!(Label::parse("k8s:app").to_string(), "k8s:app");
        assert_eq!(Label::parse("k8s:app=x").to_string(), "k8s:app=x");
    }

    #[test]
    fn filters_match_any_source_when_none_is_given() {
        let labels = Labels::parse(["k8s:app=p1", "k8s:tier=web"]);
        assert!(labels.contains_all(&Labels::parse(["app=p1"])));
        assert!(labels.contains_all(&Labels::parse(["any:app=p1", "k8s:tier=web"])));
        assert!(!labels.contains_all(&Labels::parse(["container:app=p1"])));
        assert!(!labels.contains_all(&Labels::parse(["k8s:app=p2"])));
    }
}
