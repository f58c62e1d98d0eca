//! What an object says of options.

use k8s_types::cilium::CiliumNodeConfig;
use k8s_types::core::{ConfigMap, Node};
use k8s_types::{Key, ObjectMeta, Refusal, StringMap, decode};

use crate::spec::SourceKind;

/// The prefix of the keys of a node's annotations and labels.
const PREFIX: &str = "config.cilium.io/";

/// The longest key, as of a ConfigMap.
const LONGEST_KEY: usize = 253;

/// An object's name and what it says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) key: Key,
    /// Options and their values.
    pub(crate) values: StringMap,
    /// Keys that cannot be names of options.
    pub(crate) odd: Vec<String>,
}

/// Reads an object of a source.
pub(crate) fn read(kind: SourceKind, json: &[u8]) -> Result<Said, Refusal> {
    Ok(match kind {
        SourceKind::ConfigMap => of_config_map(&decode::<ConfigMap>(json)?),
        SourceKind::CiliumNodeConfig => of_node_config(&decode::<CiliumNodeConfig>(json)?),
        SourceKind::Node => of_node(&decode::<Node>(json)?),
    })
}

fn of_config_map(object: &ConfigMap) -> Said {
    Said { key: key(&object.metadata), values: object.data.clone(), odd: Vec::new() }
}

pub(crate) fn of_node_config(object: &CiliumNodeConfig) -> Said {
    let all = object.spec.defaults.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    checked(&object.metadata, all)
}

/// Annotations count more than labels.
fn of_node(object: &Node) -> Said {
    let all = object.metadata.labels.iter().chain(object.metadata.annotations.iter());
    let named = all.filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?, value.as_str())));
    checked(&object.metadata, named)
}

fn checked<'a>(metadata: &ObjectMeta, all: impl Iterator<Item = (&'a str, &'a str)>) -> Said {
    let (good, odd): (Vec<_>, Vec<_>) = all.partition(|(key, _)| may_be_option(key));
    Said {
        key: key(metadata),
        values: good.into_iter().collect(),
        odd: odd.into_iter().map(|(key, _)| key.to_owned()).collect(),
    }
}

/// Whether a key could be one of a ConfigMap, which is also the name of a file.
fn may_be_option(key: &str) -> bool {
    let inner = |c: u8| c.is_ascii_alphanumeric() || b"-._".contains(&c);
    (1..=LONGEST_KEY).contains(&key.len()) && key != "." && !key.starts_with("..") && key.bytes().all(inner)
}

fn key(metadata: &ObjectMeta) -> Key {
    Key::new(metadata.namespace.clone(), metadata.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: SourceKind, json: &str) -> (String, Vec<String>) {
        let said = read(kind, json.as_bytes()).unwrap();
        (serde_json::to_string(&said.values).unwrap(), said.odd)
    }

    #[test]
    fn each_kind_has_its_place_for_options() {
        let map = r#"{"metadata":{"name":"a","namespace":"b"},"data":{"debug":"true","mtu":null},"binaryData":{"x":"eA=="}}"#;
        assert_eq!(text(SourceKind::ConfigMap, map).0, r#"{"debug":"true","mtu":""}"#);
        let config = r#"{"metadata":{"name":"a","namespace":"b"},"spec":{"nodeSelector":{"matchLabels":{"x":"y"}},"defaults":{"mtu":"9","a/b":"1"}}}"#;
        assert_eq!(text(SourceKind::CiliumNodeConfig, config), (r#"{"mtu":"9"}"#.into(), vec!["a/b".into()]));
        let node = r#"{"metadata":{"name":"n","labels":{"config.cilium.io/mtu":"1","config.cilium.io/debug":"true","x":"y"},
            "annotations":{"config.cilium.io/mtu":"2","config.cilium.io/..":"3","other.io/a":"b"}}}"#;
        assert_eq!(
            text(SourceKind::Node, node),
            (r#"{"debug":"true","mtu":"2"}"#.into(), vec!["..".to_owned()])
        );
    }
}
