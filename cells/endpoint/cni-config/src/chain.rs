//! Inserts the plugin into the network of another file. Everything that is not changed keeps its text and order: other
//! plugins read these objects, too.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The type under which runtimes call this plugin.
const OWN_TYPE: &str = "cilium-cni";

/// A network configuration: fields in their order, plugins as they are.
#[derive(Debug)]
pub(crate) struct Chain {
    fields: Vec<(String, Box<RawValue>)>,
    plugins: Vec<Box<RawValue>>,
    pub(crate) name: String,
}

impl Chain {
    /// Parses a list of plugins (`.conflist`) or a single plugin (`.conf`), which becomes a list; none if it is neither.
    pub(crate) fn parse(text: &str) -> Option<Chain> {
        let Object(mut fields) = serde_json::from_str(text).ok()?;
        let name = string(&fields, "name")?;
        let Some(at) = fields.iter().position(|(key, _)| key == "plugins") else {
            string(&fields, "type")?;
            let version = string(&fields, "cniVersion").unwrap_or_else(|| "0.3.1".to_owned());
            let lifted = [("cniVersion", version), ("name", name.clone())];
            let lifted = lifted.map(|(key, value)| {
                Some((key.to_owned(), raw(&serde_json::Value::from(value).to_string())?))
            });
            let fields = lifted.into_iter().collect::<Option<_>>()?;
            return Some(Chain { fields, plugins: vec![raw(text.trim())?], name });
        };
        let plugins: Vec<Box<RawValue>> = serde_json::from_str(fields.remove(at).1.get()).ok()?;
        (!plugins.is_empty()).then_some(Chain { fields, plugins, name })
    }

    /// Returns the configuration in which `entry` takes the place of the plugin's own entry, or follows all others.
    pub(crate) fn with(&self, entry: &str) -> String {
        let is_own = |plugin: &RawValue| type_of(plugin).as_deref() == Some(OWN_TYPE);
        let own = self.plugins.iter().position(|plugin| is_own(plugin)).unwrap_or(self.plugins.len());
        let mut plugins: Vec<&str> = self.plugins.iter().map(|plugin| plugin.get()).collect();
        match plugins.get_mut(own) {
            Some(place) => *place = entry,
            None => plugins.push(entry),
        }
        let plugins: Vec<String> = plugins.iter().map(|plugin| format!("    {plugin}")).collect();
        let fields = self
            .fields
            .iter()
            .map(|(key, value)| format!("  {}: {},\n", serde_json::Value::from(key.as_str()), value.get()));
        format!("{{\n{}  \"plugins\": [\n{}\n  ]\n}}\n", fields.collect::<String>(), plugins.join(",\n"))
    }

    /// Whether this plugin is the only one: such a network gives no interface to chain to.
    pub(crate) fn is_own(&self) -> bool {
        self.plugins.iter().all(|plugin| type_of(plugin).as_deref() == Some(OWN_TYPE))
    }
}

#[derive(Deserialize)]
struct Plugin {
    #[serde(rename = "type")]
    kind: String,
}

fn type_of(plugin: &RawValue) -> Option<String> {
    Some(serde_json::from_str::<Plugin>(plugin.get()).ok()?.kind)
}

fn raw(json: &str) -> Option<Box<RawValue>> {
    RawValue::from_string(json.to_owned()).ok()
}

fn string(fields: &[(String, Box<RawValue>)], key: &str) -> Option<String> {
    let (_, value) = fields.iter().find(|(name, _)| name == key)?;
    serde_json::from_str::<String>(value.get()).ok().filter(|value| !value.is_empty())
}

/// A JSON object whose fields keep their order.
struct Object(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Object, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ENTRY: &str = r#"{"type":"cilium-cni","chaining-mode":"generic-veth"}"#;

    fn chained(text: &str) -> Value {
        serde_json::from_str(&Chain::parse(text).unwrap().with(ENTRY)).unwrap()
    }

    #[test]
    fn the_entry_is_last_or_in_the_place_of_the_old_one() {
        let entry = json!({"type": "cilium-cni", "chaining-mode": "generic-veth"});
        let found =
            chained(r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"ptp"},{"type":"tuning"}]}"#);
        assert_eq!(found["plugins"], json!([{"type": "ptp"}, {"type": "tuning"}, entry]));
        let found = chained(r#"{"name":"a","plugins":[{"type":"cilium-cni","x":1},{"type":"tuning"}]}"#);
        assert_eq!(found["plugins"], json!([entry, {"type": "tuning"}]));
    }

    #[test]
    fn what_is_not_changed_keeps_its_text_and_order() {
        let text = r#"{"z":1.50,"name":"a","plugins":[{"type":"ptp","b":{"y":1,"x":2e3}}],"a":[ ]}"#;
        let found = Chain::parse(text).unwrap().with(ENTRY);
        for part in [r#"{"type":"ptp","b":{"y":1,"x":2e3}}"#, r#""z": 1.50"#, r#""a": [ ]"#] {
            assert!(found.contains(part), "{found}");
        }
        assert!(found.find(r#""z""#) < found.find(r#""name""#), "{found}");
    }

    #[test]
    fn a_single_plugin_becomes_a_list() {
        let found = chained(r#"{"cniVersion":"0.4.0","name":"net","type":"bridge","bridge":"br0"}"#);
        assert_eq!((&found["name"], &found["cniVersion"]), (&json!("net"), &json!("0.4.0")));
        assert_eq!(found["plugins"][0]["bridge"], "br0");
        assert_eq!(found["plugins"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn files_that_are_no_networks_are_none() {
        for text in [
            "",
            "{}",
            "[]",
            r#"{"name":"a"}"#,
            r#"{"name":"a","plugins":[]}"#,
            r#"{"name":7,"type":"x"}"#,
            "{",
        ] {
            assert!(Chain::parse(text).is_none(), "{text}");
        }
        assert!(Chain::parse(r#"{"name":"a","plugins":[{"type":"cilium-cni"}]}"#).unwrap().is_own());
    }
}
