//! The options in an object.

use k8s_types::cilium::CiliumNodeConfig;
use k8s_types::core::{ConfigMap, Node};
use k8s_types::{Key, ObjectMeta, Refusal, StringMap, decode};

use crate::spec::SourceKind;

/// The prefix of the keys of a node's annotations and labels.
const PREFIX: &str = "config.cilium.io/";

/// The maximum length of a key, as for ConfigMaps.
const LONGEST_KEY: usize = 253;

/// An object's name and its options.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObjectOptions {
    pub(crate) key: Key,
    /// Options and their values.
    pub(crate) values: StringMap,
    /// Keys that cannot be names of options.
    pub(crate) invalid_keys: Vec<String>,
}

/// Parses an object of a source.
pub(crate) fn read(kind: SourceKind, json: &[u8]) -> Result<ObjectOptions, Refusal> {
    Ok(match kind {
        SourceKind::ConfigMap => of_config_map(&decode::<ConfigMap>(json)?),
        SourceKind::CiliumNodeConfig => of_node_config(&decode::<CiliumNodeConfig>(json)?),
        SourceKind::Node => of_node(&decode::<Node>(json)?),
    })
}

fn of_config_map(object: &ConfigMap) -> ObjectOptions {
    ObjectOptions { key: key(&object.metadata), values: object.data.clone(), invalid_keys: Vec::new() }
}

pub(crate) fn of_node_config(object: &CiliumNodeConfig) -> ObjectOptions {
    let all = object.spec.defaults.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    checked(&object.metadata, all)
}

/// Returns the options of a node; annotations override labels.
fn of_node(object: &Node) -> ObjectOptions {
    let all = object.metadata.labels.iter().chain(object.metadata.annotations.iter());
    let named = all.filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?, value.as_str())));
    checked(&object.metadata, named)
}

fn checked<'a>(metadata: &ObjectMeta, all: impl Iterator<Item = (&'a str, &'a str)>) -> ObjectOptions {
    let (good, invalid_keys): (Vec<_>, Vec<_>) = all.partition(|(key, _)| may_be_option(key));
    ObjectOptions {
        key: key(metadata),
        values: good.into_iter().collect(),
        invalid_keys: invalid_keys.into_iter().map(|(key, _)| key.to_owned()).collect(),
    }
}

/// Whether a key would be valid in a ConfigMap, so that it is a safe file name.
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
        let options = read(kind, json.as_bytes()).unwrap();
        (serde_json::to_string(&options.values).unwrap(), options.invalid_keys)
    }

    #[test]
    fn options_are_read_from_each_kind() {
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
