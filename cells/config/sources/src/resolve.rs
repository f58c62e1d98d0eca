//! Merges the options of several objects into one configuration.

use std::collections::BTreeMap;

use k8s_types::SmolStr;
use k8s_types::cilium::CiliumNodeConfig;
use k8s_types::core::Node;
use k8s_types::selector::LabelRequirements;

use crate::object::{ObjectOptions, of_node_config};
use crate::spec::{ConfigSource, Overrides, SourceKind};

/// The key that names the objects for the agent to follow.
const SOURCES: &str = "config-sources";

/// The key with the restrictions on keys that later objects may override.
const OVERRIDES: &str = "config-sources-overrides";

/// An object with its options.
pub(crate) type Part = (ConfigSource, ObjectOptions);

/// Returns the CiliumNodeConfigs that select a node, in order of precedence: by name.
pub(crate) fn for_node(
    mut configs: Vec<CiliumNodeConfig>,
    node: &Node,
    namespace: &str,
) -> Result<Vec<Part>, String> {
    configs.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let mut parts = Vec::new();
    for config in configs {
        let name = config.metadata.name.to_string();
        let source =
            ConfigSource { kind: SourceKind::CiliumNodeConfig, namespace: namespace.to_owned(), name };
        // Without a selector it applies to no node.
        let Some(selector) = &config.spec.node_selector else { continue };
        let selector = LabelRequirements::try_from(selector)
            .map_err(|error| format!("{source}: spec.nodeSelector.{error}"))?;
        if selector.matches(|key| node.metadata.labels.get(key).map(SmolStr::as_str)) {
            parts.push((source, of_node_config(&config)));
        }
    }
    Ok(parts)
}

/// The resolved options.
#[derive(Debug)]
pub(crate) struct Resolved {
    /// Values by key, including [`SOURCES`] and [`OVERRIDES`].
    pub(crate) values: BTreeMap<String, String>,
    /// Warnings.
    pub(crate) notes: Vec<String>,
}

/// Merges the options of all sources; later ones take precedence. Sources after the first, each of which may consist of
/// several objects, override only the keys that `overrides` permits.
pub(crate) fn merge(sources: Vec<Vec<Part>>, overrides: &Overrides) -> Resolved {
    let (mut values, mut used, mut notes) = (BTreeMap::new(), Vec::new(), Vec::new());
    for (index, parts) in sources.into_iter().enumerate() {
        for (source, options) in parts {
            for key in options.invalid_keys {
                notes.push(format!("{source}: {key:?} cannot be the name of an option and is left out"));
            }
            let (permitted, denied): (Vec<_>, Vec<_>) =
                options.values.iter().partition(|(key, _)| index == 0 || overrides.permit(key));
            for (key, _) in denied {
                notes.push(format!("{source}: {key} must not be changed here and is left out"));
            }
            if permitted.is_empty() {
                continue;
            }
            values.extend(permitted.into_iter().map(|(key, value)| (key.to_string(), value.to_string())));
            used.push(source);
        }
    }
    // Serializing lists of strings cannot fail.
    let json = |value: serde_json::Result<String>| value.unwrap_or_default();
    values.insert(SOURCES.to_owned(), json(serde_json::to_string(&used)));
    values.insert(OVERRIDES.to_owned(), json(serde_json::to_string(overrides)));
    Resolved { values, notes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(kind: SourceKind, name: &str, values: &[(&str, &str)]) -> Part {
        let values = values.iter().copied().collect();
        (
            ConfigSource { kind, namespace: "ns".into(), name: name.into() },
            ObjectOptions { values, ..ObjectOptions::default() },
        )
    }

    fn text(resolved: &Resolved) -> String {
        let values = resolved.values.iter().filter(|(key, _)| !key.starts_with("config-"));
        values.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn later_sources_take_precedence_if_permitted() {
        let sources = || {
            vec![
                vec![part(SourceKind::ConfigMap, "map", &[("a", "1"), ("b", "1"), ("c", "1")])],
                vec![
                    part(SourceKind::CiliumNodeConfig, "x", &[("a", "2"), ("b", "2")]),
                    part(SourceKind::CiliumNodeConfig, "y", &[("b", "3")]),
                ],
                vec![part(SourceKind::Node, "n", &[("c", "4")])],
            ]
        };
        let all = merge(sources(), &Overrides::default());
        assert_eq!((text(&all).as_str(), all.notes.len()), ("a=2 b=3 c=4", 0));
        assert_eq!(
            all.values["config-sources"],
            r#"[{"kind":"config-map","namespace":"ns","name":"map"},{"kind":"cilium-node-config","namespace":"ns","name":"x"},{"kind":"cilium-node-config","namespace":"ns","name":"y"},{"kind":"node","namespace":"ns","name":"n"}]"#
        );
        assert_eq!(all.values["config-sources-overrides"], r#"{"allowConfigKeys":[],"denyConfigKeys":[]}"#);
        // The agent can parse the written value.
        let again = ConfigSource::parse_list(&all.values["config-sources"]).unwrap();
        assert_eq!((again.len(), again[1].name.as_str()), (4, "x"));

        let deny = Overrides { deny_config_keys: vec!["b".into()], ..Overrides::default() };
        let denied = merge(sources(), &deny);
        assert_eq!(text(&denied), "a=2 b=1 c=4");
        assert!(
            !denied.values["config-sources"].contains(r#""y""#),
            "an object that changes nothing is not followed"
        );
        assert_eq!(denied.notes[1], "CiliumNodeConfig ns/y: b must not be changed here and is left out");
    }

    #[test]
    fn configs_apply_to_nodes_with_matching_labels() {
        let config = |name: &str, selector: &str| -> CiliumNodeConfig {
            let json = format!(
                r#"{{"metadata":{{"name":"{name}"}},"spec":{{{selector}"defaults":{{"k":"{name}"}}}}}}"#
            );
            serde_json::from_str(&json).unwrap()
        };
        let node: Node = serde_json::from_str(r#"{"metadata":{"name":"n","labels":{"zone":"a"}}}"#).unwrap();
        let configs = vec![
            config("z", r#""nodeSelector":{"matchLabels":{"zone":"a"}},"#),
            config("b", r#""nodeSelector":{"matchLabels":{"zone":"b"}},"#),
            config("a", r#""nodeSelector":{},"#),
            config("c", ""),
        ];
        let parts = for_node(configs, &node, "ns").unwrap();
        let names: Vec<String> = parts.iter().map(|(source, _)| source.to_string()).collect();
        assert_eq!(names, ["CiliumNodeConfig ns/a", "CiliumNodeConfig ns/z"]);
        let wrong = config("w", r#""nodeSelector":{"matchExpressions":[{"key":"a","operator":"Like"}]},"#);
        let error = for_node(vec![wrong], &node, "ns").unwrap_err();
        assert!(
            error.starts_with("CiliumNodeConfig ns/w: spec.nodeSelector.matchExpressions: Like of"),
            "{error}"
        );
    }
}
