//! The network configuration, read from stdin.

use crate::error::Error;
use crate::invocation::Command;
use crate::version::CniVersion;
use serde::Deserialize;
use serde_json::Value;

/// Chaining modes of Cilium; a network with such a name selects the mode, too.
const CHAINING_MODES: [&str; 4] = ["aws-cni", "azure", "flannel", "generic-veth"];

/// Keys that the plugin uses; unknown keys are ignored, as in Cilium.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct NetworkConfig {
    #[serde(rename = "cniVersion", default)]
    version: String,
    #[serde(default)]
    pub(crate) name: String,
    #[serde(rename = "prevResult")]
    pub(crate) prev_result: Option<Value>,
    #[serde(default)]
    ipam: Ipam,
    #[serde(rename = "enable-debug", default)]
    pub(crate) debug: bool,
    #[serde(rename = "log-format", default)]
    pub(crate) log_format: String,
    #[serde(rename = "log-file", default)]
    pub(crate) log_file: String,
    /// Whether routes of a chained interface get the node's MTU.
    #[serde(rename = "enable-route-mtu", default)]
    pub(crate) route_mtu: bool,
    #[serde(rename = "chaining-mode", default)]
    chaining_mode: String,
    #[serde(rename = "cni.dev/valid-attachments")]
    valid_attachments: Option<Vec<Attachment>>,
    /// Older spelling of `valid_attachments`, which runtimes still send as well.
    #[serde(rename = "cni.dev/attachments")]
    attachments: Option<Vec<Attachment>>,
    /// The unparsed document, for delegated plugins.
    #[serde(skip)]
    pub(crate) raw: Vec<u8>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Ipam {
    #[serde(rename = "type", default)]
    plugin: String,
}

/// An attachment that the runtime still knows (GC).
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Attachment {
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
}

impl NetworkConfig {
    pub(crate) fn parse(stdin: &[u8]) -> Result<Self, Error> {
        let mut config: Self = serde_json::from_slice(stdin).map_err(|source| Error::Decode { source })?;
        config.raw = stdin.to_vec();
        let invalid = |reason: &str| Err(Error::InvalidConfig { key: "name", reason: reason.into() });
        if config.name.is_empty() {
            return invalid("missing network name");
        }
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if !config.name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !config.name.chars().all(word) {
            return invalid("want letters, digits, '_', '.', '-', the first a letter or digit");
        }
        Ok(config)
    }

    /// Returns the specification's version, which [`Self::check_version`] has validated.
    pub(crate) fn version(&self) -> CniVersion {
        CniVersion::parse(&self.version).unwrap_or(CniVersion::V0_1_0)
    }

    /// Rejects unsupported versions, and verbs that the version does not have yet.
    pub(crate) fn check_version(&self, command: Command) -> Result<(), Error> {
        let Some(version) = CniVersion::parse(&self.version) else {
            return Err(Error::IncompatibleVersion { found: self.version.clone() });
        };
        let since = match command {
            Command::Check => CniVersion::V0_4_0,
            Command::Status | Command::Gc => CniVersion::V1_1_0,
            Command::Add | Command::Del | Command::Version => CniVersion::V0_1_0,
        };
        if version < since {
            return Err(Error::VerbTooNew { command: command.as_str(), found: version.as_str() });
        }
        Ok(())
    }

    /// Rejects unknown chaining modes, with the key.
    pub(crate) fn check_chaining(&self) -> Result<(), Error> {
        let (key, mode) = self.chaining();
        if key == "chaining-mode" && !CHAINING_MODES.contains(&mode) {
            let reason = format!("invalid chaining mode {mode:?}, known are {}", CHAINING_MODES.join(", "));
            return Err(Error::InvalidConfig { key, reason });
        }
        Ok(())
    }

    /// Returns the result of the plugin before this one, which a chained ADD needs.
    pub(crate) fn previous_result(&self) -> Result<Value, Error> {
        let invalid = |reason| Err(Error::InvalidConfig { key: "prevResult", reason });
        let (key, mode) = self.chaining();
        match &self.prev_result {
            Some(result) if result.is_object() => Ok(result.clone()),
            Some(result) => invalid(format!("want an object, found {result}")),
            None => invalid(format!(
                "missing; {key} {mode:?} takes over the interface of the plugin before it in the list of plugins"
            )),
        }
    }

    /// Whether another plugin has created the interface, and so removes it.
    pub(crate) fn is_chained(&self) -> bool {
        CHAINING_MODES.contains(&self.chaining().1)
    }

    /// Returns the key that selects chaining, and its value.
    fn chaining(&self) -> (&'static str, &str) {
        if self.chaining_mode.is_empty() {
            ("name", &self.name)
        } else {
            ("chaining-mode", &self.chaining_mode)
        }
    }

    /// Returns the delegated IPAM plugin, if one is configured.
    pub(crate) fn ipam_plugin(&self) -> Option<&str> {
        Some(self.ipam.plugin.as_str()).filter(|plugin| !plugin.is_empty())
    }

    /// Returns `CONTAINERID:IFNAME` of every attachment that a GC must keep.
    pub(crate) fn valid_attachments(&self) -> Result<Vec<String>, Error> {
        let list = self.valid_attachments.as_ref().or(self.attachments.as_ref()).ok_or_else(|| {
            let reason = "missing; without the list of attachments in use nothing can be collected".into();
            Error::InvalidConfig { key: "cni.dev/valid-attachments", reason }
        })?;
        Ok(list.iter().map(|valid| format!("{}:{}", valid.container_id, valid.ifname)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<NetworkConfig, Error> {
        NetworkConfig::parse(text.as_bytes())
    }

    #[test]
    fn verbs_by_version() {
        let config = parse(r#"{"cniVersion":"0.3.1","name":"cilium","type":"cilium-cni"}"#).unwrap();
        assert!(config.check_version(Command::Add).is_ok());
        let error = config.check_version(Command::Check).unwrap_err();
        insta::assert_snapshot!(error, @r#"config version "0.3.1" does not allow CHECK"#);
        let config = parse(r#"{"cniVersion":"1.1.0","name":"cilium"}"#).unwrap();
        assert!(config.check_version(Command::Gc).is_ok());
        assert_eq!(parse(r#"{"name":"cilium"}"#).unwrap().version(), CniVersion::V0_1_0);
    }

    #[test]
    fn chaining_is_chosen_by_name_or_mode() {
        let chained = |text: &str| parse(text).unwrap().is_chained();
        assert!(chained(r#"{"name":"cbr0","chaining-mode":"flannel"}"#));
        assert!(chained(r#"{"name":"aws-cni"}"#));
        assert!(!chained(r#"{"name":"portmap"}"#));
        let refuse = |text: &str| parse(text).unwrap().check_chaining().unwrap_err().to_string();
        insta::assert_snapshot!(refuse(r#"{"name":"cilium","chaining-mode":"x"}"#), @r#"invalid network configuration, key "chaining-mode": invalid chaining mode "x", known are aws-cni, azure, flannel, generic-veth"#);
        let missing = |text: &str| parse(text).unwrap().previous_result().unwrap_err().to_string();
        insta::assert_snapshot!(missing(r#"{"name":"cbr0","chaining-mode":"generic-veth"}"#), @r#"invalid network configuration, key "prevResult": missing; chaining-mode "generic-veth" takes over the interface of the plugin before it in the list of plugins"#);
        insta::assert_snapshot!(missing(r#"{"name":"flannel","prevResult":[]}"#), @r#"invalid network configuration, key "prevResult": want an object, found []"#);
    }

    #[test]
    fn attachments_in_use() {
        let config = parse(
            r#"{"cniVersion":"1.1.0","name":"cilium","cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]}"#,
        );
        assert_eq!(config.unwrap().valid_attachments().unwrap(), ["a:eth0"]);
        let error = parse(r#"{"name":"cilium"}"#).unwrap().valid_attachments().unwrap_err();
        assert_eq!(error.code(), 7);
    }
}
