//! The specification of the objects: their order, and the keys that later ones may override.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;

/// The default value of the option `config-sources`.
pub(crate) const DEFAULT_SOURCES: &str =
    r#"[{"kind":"config-map","namespace":"kube-system","name":"cilium-config"}]"#;

/// The kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// A ConfigMap: its data.
    ConfigMap,
    /// A CiliumNodeConfig: its `spec.defaults`.
    CiliumNodeConfig,
    /// A Node: its annotations and labels `config.cilium.io/KEY`.
    Node,
}

/// An object that has configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigSource {
    /// The kind of object.
    pub kind: SourceKind,
    /// Its namespace; empty for a node.
    #[serde(default)]
    pub namespace: String,
    /// Its name.
    #[serde(default)]
    pub name: String,
}

/// The keys of the first source that later ones may override.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Overrides {
    /// If not empty, only these.
    #[serde(default, deserialize_with = "keys")]
    pub allow_config_keys: Vec<String>,
    /// Otherwise, all except these.
    #[serde(default, deserialize_with = "keys")]
    pub deny_config_keys: Vec<String>,
}

/// Deserializes a list; Go writes a nil one as `null`.
fn keys<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Logs the unknown keys of an option's value, which are ignored, as in Cilium.
fn report_unknown_keys(option: &str, text: &str, known: &[&str]) {
    for key in unknown_keys(text, known) {
        tracing::warn!(option, key, "Ignoring a key that is not known; give one of {}", known.join(", "));
    }
}

/// Returns the keys of an object, or of the objects of a list, that are not known.
fn unknown_keys(text: &str, known: &[&str]) -> Vec<String> {
    let objects = match serde_json::from_str(text) {
        Ok(Value::Array(items)) => items,
        Ok(value) => vec![value],
        Err(_) => Vec::new(),
    };
    let keys = objects.iter().filter_map(Value::as_object).flat_map(|object| object.keys());
    keys.filter(|key| !known.contains(&key.as_str())).cloned().collect()
}

impl Overrides {
    /// Parses the value of the option `config-sources-overrides`; an empty one forbids nothing.
    pub fn parse(text: &str) -> Result<Overrides, Error> {
        if text.trim().is_empty() {
            return Ok(Overrides::default());
        }
        let overrides = serde_json::from_str(text).map_err(|reason| Error::Option {
            option: "config-sources-overrides",
            value: text.to_owned(),
            reason: reason.to_string(),
            expected: r#"{"allowConfigKeys":["KEY"],"denyConfigKeys":["KEY"]}"#,
        })?;
        report_unknown_keys("config-sources-overrides", text, &["allowConfigKeys", "denyConfigKeys"]);
        Ok(overrides)
    }

    /// Whether sources after the first may change this key.
    pub fn permit(&self, key: &str) -> bool {
        let within = |list: &[String]| list.iter().any(|item| item == key);
        match self.allow_config_keys.is_empty() {
            true => !within(&self.deny_config_keys),
            false => within(&self.allow_config_keys),
        }
    }

    /// Returns the priority of a key in the source at `index`: the lowest takes precedence, so the last permitted
    /// source.
    pub fn priority(&self, key: &str, index: usize, sources: usize) -> u32 {
        let priority = match index {
            0 => sources,
            _ if self.permit(key) => sources - index,
            _ => sources + index,
        };
        u32::try_from(priority).unwrap_or(u32::MAX)
    }
}

impl ConfigSource {
    /// Parses the value of the option `config-sources`; an empty one names none.
    pub fn parse_list(text: &str) -> Result<Vec<ConfigSource>, Error> {
        let wrong = |reason: String| Error::Option {
            option: "config-sources",
            value: text.to_owned(),
            reason,
            expected: DEFAULT_SOURCES,
        };
        if text.trim().is_empty() {
            return Ok(Vec::new());
        }
        let sources: Vec<ConfigSource> =
            serde_json::from_str(text).map_err(|reason| wrong(reason.to_string()))?;
        report_unknown_keys("config-sources", text, &["kind", "namespace", "name"]);
        for (at, source) in sources.iter().enumerate() {
            let lacks =
                |selection: &str| wrong(format!("entry {at}, a {}, has no {selection}", source.kind.word()));
            if source.name.is_empty() {
                return Err(lacks("name"));
            }
            if source.namespace.is_empty() && source.kind != SourceKind::Node {
                return Err(lacks("namespace"));
            }
        }
        Ok(sources)
    }
}

impl ConfigSource {
    /// Whether the key is that of this object.
    pub(crate) fn is(&self, key: &k8s_types::Key) -> bool {
        let here = self.kind == SourceKind::Node || self.namespace == key.namespace;
        here && self.name == key.name
    }
}

impl SourceKind {
    /// Returns the kind's name in options, such as `config-map`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            SourceKind::ConfigMap => "config-map",
            SourceKind::CiliumNodeConfig => "cilium-node-config",
            SourceKind::Node => "node",
        }
    }

    /// Returns the Kubernetes kind.
    pub(crate) fn kind(self) -> k8s_types::Kind {
        match self {
            SourceKind::ConfigMap => k8s_types::Kind::ConfigMap,
            SourceKind::CiliumNodeConfig => k8s_types::Kind::CiliumNodeConfig,
            SourceKind::Node => k8s_types::Kind::Node,
        }
    }
}

/// Formats the object as `ConfigMap kube-system/cilium-config`.
impl fmt::Display for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConfigSource { kind, namespace, name } = self;
        match namespace.is_empty() || *kind == SourceKind::Node {
            true => write!(f, "{} {name}", kind.kind()),
            false => write!(f, "{} {namespace}/{name}", kind.kind()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_source_takes_precedence_unless_denied() {
        let priorities = |overrides: &str, key| {
            let overrides = Overrides::parse(overrides).unwrap();
            [0, 1, 2].map(|index| overrides.priority(key, index, 3))
        };
        assert_eq!(priorities("", "a"), [3, 2, 1]);
        assert_eq!(priorities(r#"{"allowConfigKeys":null,"denyConfigKeys":null}"#, "a"), [3, 2, 1]);
        assert_eq!(priorities(r#"{"denyConfigKeys":["a"]}"#, "a"), [3, 4, 5]);
        assert_eq!(priorities(r#"{"denyConfigKeys":["a"]}"#, "b"), [3, 2, 1]);
        // A list of allowed keys forbids all others, so the list of denied keys has no effect.
        let both = r#"{"allowConfigKeys":["a"],"denyConfigKeys":["a"]}"#;
        assert_eq!((priorities(both, "a"), priorities(both, "b")), ([3, 2, 1], [3, 4, 5]));
    }

    #[test]
    fn errors_of_options_name_the_remedy() {
        let error = |text: &str| ConfigSource::parse_list(text).unwrap_err().to_string();
        let text = error("config-map:kube-system/cilium-config");
        assert!(
            text.starts_with("option config-sources: \"config-map:kube-system/cilium-config\" is wrong: ")
        );
        assert!(text.ends_with(&format!("give a list of objects such as {DEFAULT_SOURCES}")), "{text}");
        assert!(error(r#"[{"kind":"secret","name":"a"}]"#).contains("unknown variant `secret`"));
        assert!(
            error(r#"[{"kind":"node"}]"#).contains("wrong: entry 0, a node, has no name; give"),
            "{}",
            error(r#"[{"kind":"node"}]"#)
        );
        assert!(error(r#"[{"kind":"config-map","name":"a"}]"#).contains("a config-map, has no namespace"));
        assert_eq!(ConfigSource::parse_list(" ").unwrap(), []);
        let error = Overrides::parse("[1").unwrap_err().to_string();
        assert!(error.contains("config-sources-overrides") && error.contains("allowConfigKeys"), "{error}");
    }

    #[test]
    fn unknown_keys_are_ignored_and_reported() {
        let text = r#"[{"kind":"node","name":"n","nmae":"m"},{"kind":"node","name":"o"}]"#;
        assert_eq!(ConfigSource::parse_list(text).unwrap().len(), 2);
        assert_eq!(unknown_keys(text, &["kind", "namespace", "name"]), ["nmae"]);
        let text = r#"{"denyConfigKeys":["a"],"newer":{}}"#;
        assert_eq!(Overrides::parse(text).unwrap().deny_config_keys, ["a"]);
        assert_eq!(unknown_keys(text, &["allowConfigKeys", "denyConfigKeys"]), ["newer"]);
    }

    #[test]
    fn sources_round_trip() {
        let sources = ConfigSource::parse_list(DEFAULT_SOURCES).unwrap();
        assert_eq!(serde_json::to_string(&sources).unwrap(), DEFAULT_SOURCES);
        assert_eq!(sources[0].to_string(), "ConfigMap kube-system/cilium-config");
        let overrides = serde_json::to_string(&Overrides::default()).unwrap();
        assert_eq!(overrides, r#"{"allowConfigKeys":[],"denyConfigKeys":[]}"#);
    }
}
