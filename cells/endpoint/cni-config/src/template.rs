//! The configurations of networks that no other file describes, byte for byte those of Cilium.

use serde_json::Value;

use crate::config::ChainingMode;
use crate::error::Error;

/// The variable parts of a configuration.
#[derive(Clone, Copy, Debug)]
pub struct Network<'a> {
    /// How the plugin shares interfaces.
    pub chaining: ChainingMode,
    /// Whether the plugin logs debug lines.
    pub debug: bool,
    /// Log file of the plugin.
    pub log_file: &'a str,
}

impl Network<'_> {
    /// Returns the fields that follow the plugin's type.
    fn fields(&self) -> [(&'static str, Value); 2] {
        [("enable-debug", self.debug.into()), ("log-file", self.log_file.into())]
    }

    /// Returns the plugin's entry for a network of another file.
    pub(crate) fn chained_entry(&self) -> String {
        let mode = Value::from(self.chaining.as_str());
        let [debug, log] = self.fields().map(|(name, value)| format!(r#""{name}":{value}"#));
        format!(r#"{{"type":"cilium-cni","chaining-mode":{mode},{debug},{log}}}"#)
    }
}

/// Returns the configuration of a network of its own.
///
/// # Errors
/// For modes that chain to a network of another file.
pub fn render(network: &Network<'_>) -> Result<String, Error> {
    let [debug, log] = network.fields().map(|(name, value)| format!(r#""{name}": {value}"#));
    let own = format!("    {{\n       \"type\": \"cilium-cni\",\n       {debug},\n       {log}\n    }}");
    let portmap =
        "    {\n      \"type\": \"portmap\",\n      \"capabilities\": {\"portMappings\": true}\n    }";
    let (name, plugins) = match network.chaining {
        ChainingMode::None => ("cilium", vec![own]),
        ChainingMode::Portmap => ("portmap", vec![own, portmap.to_owned()]),
        ChainingMode::Flannel => {
            let delegate = "      \"delegate\": {\n         \"hairpinMode\": true,\n         \"isDefaultGateway\": true\n      }";
            let flannel = format!("    {{\n      \"type\": \"flannel\",\n{delegate}\n    }}");
            let chained = format!(
                "    {{\n       \"type\": \"cilium-cni\",\n       \"chaining-mode\": \"flannel\",\n       {debug},\n       \
                 {log}\n    }}"
            );
            ("flannel", vec![flannel, portmap.to_owned(), chained])
        }
        mode => return Err(Error::NoTarget { mode: mode.as_str() }),
    };
    let plugins = plugins.join(",\n");
    Ok(format!(
        "\n{{\n  \"cniVersion\": \"0.3.1\",\n  \"name\": \"{name}\",\n  \"plugins\": [\n{plugins}\n  ]\n}}\n"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn network(chaining: ChainingMode) -> Value {
        let network = Network { chaining, debug: true, log_file: r#"/run/"odd"\log"# };
        let text = render(&network).unwrap();
        assert!(text.starts_with("\n{\n  \"cniVersion\""), "{text}");
        serde_json::from_str(&text).unwrap()
    }

    fn own() -> Value {
        json!({"type": "cilium-cni", "enable-debug": true, "log-file": r#"/run/"odd"\log"#})
    }

    #[test]
    fn a_network_of_its_own_has_the_plugins_of_its_mode() {
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        let flannel = json!({"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}});
        let mut chained = own();
        chained["chaining-mode"] = "flannel".into();
        for (mode, name, plugins) in [
            (ChainingMode::None, "cilium", json!([own()])),
            (ChainingMode::Portmap, "portmap", json!([own(), portmap])),
            (ChainingMode::Flannel, "flannel", json!([flannel, portmap, chained])),
        ] {
            assert_eq!(network(mode), json!({"cniVersion": "0.3.1", "name": name, "plugins": plugins}));
        }
    }

    #[test]
    fn a_mode_that_needs_a_target_is_refused_with_the_remedy() {
        for chaining in [ChainingMode::AwsCni, ChainingMode::Azure, ChainingMode::GenericVeth] {
            let error = render(&Network { chaining, debug: false, log_file: "" }).unwrap_err().to_string();
            let begin = format!("invalid CNI chaining mode: {}", chaining.as_str());
            assert!(error.starts_with(&begin) && error.contains("cni-chaining-target"), "{error}");
        }
    }

    #[test]
    fn a_chained_entry_is_one_object() {
        let network = Network { chaining: ChainingMode::GenericVeth, debug: false, log_file: "/l" };
        let entry: Value = serde_json::from_str(&network.chained_entry()).unwrap();
        let expected = json!({"type": "cilium-cni", "chaining-mode": "generic-veth", "enable-debug": false, "log-file": "/l"});
        assert_eq!(entry, expected);
    }
}
