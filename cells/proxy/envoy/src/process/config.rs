//! The options of an Envoy that the agent starts. Changes take effect when Envoy starts next.

use std::path::PathBuf;

use hive::config::{FlagValue, Kind, Parsed};
use tracing::level_filters::LevelFilter;

/// The program that drops what Envoy must not be permitted to do, and becomes Envoy.
const STARTER_SUFFIX: &str = "-starter";

/// How the agent starts an Envoy, without `external-envoy-proxy`.
#[derive(Clone, Debug, PartialEq, Eq, hive::Config)]
#[config(group = "Envoy")]
pub struct EnvoyProcessConfig {
    /// Envoy with Cilium's filters, which the agent starts without external-envoy-proxy: a path, or a name in PATH; without it rules of HTTP deny the traffic of their ports
    #[flag(default = "cilium-envoy-starter")]
    pub envoy_binary: String,
    /// Id that separates the shared memory of several Envoys of a node
    #[flag(default = 0)]
    pub envoy_base_id: u32,
    /// Least level of Envoy's log: trace, debug, info, warning, error, critical or off; empty for that of the agent
    #[flag(default = "")]
    pub envoy_default_log_level: EnvoyLogLevel,
    /// File for Envoy's log; empty for the log of the agent
    #[flag(default = "")]
    pub envoy_log: String,
    /// Let Envoy listen on ports below 1024
    #[flag(default = false)]
    pub envoy_keep_cap_netbindservice: bool,
    /// Port on the loopback address for Envoy's administration; 0 for none
    #[flag(default = 0)]
    pub proxy_admin_port: u16,
    /// Number of seconds for which Envoy waits for resources before it serves without them
    #[flag(default = 30)]
    pub proxy_initial_fetch_timeout: u32,
    /// Number of connections of clients at once, to all listeners of Envoy
    #[flag(default = 50_000)]
    pub proxy_max_active_downstream_connections: u32,
    /// Port for Envoy's metrics; 0 for none
    #[flag(default = 0)]
    pub proxy_prometheus_port: u16,
}

impl EnvoyProcessConfig {
    /// Returns the path of the binary, if it is there. Blocks.
    pub(crate) fn binary(&self) -> Option<PathBuf> {
        if self.envoy_binary.is_empty() {
            return None;
        }
        if self.envoy_binary.contains('/') {
            let path = PathBuf::from(&self.envoy_binary);
            return path.is_file().then_some(path);
        }
        let folders = std::env::var_os("PATH")?;
        std::env::split_paths(&folders)
            .map(|folder| folder.join(&self.envoy_binary))
            .find(|path| path.is_file())
    }

    /// Returns the arguments before those of Envoy.
    pub(crate) fn starter_arguments(&self) -> &'static [&'static str] {
        match self.envoy_keep_cap_netbindservice && self.envoy_binary.ends_with(STARTER_SUFFIX) {
            true => &["--keep-cap-net-bind-service", "--"],
            // Without the starter Envoy has the capabilities of the agent.
            false => &[],
        }
    }
}

/// A level of Envoy's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnvoyLogLevel {
    /// That of the agent.
    #[default]
    Agent,
    /// A level by Envoy's name.
    Named(&'static str),
}

impl EnvoyLogLevel {
    const NAMES: [&str; 7] = ["trace", "debug", "info", "warning", "error", "critical", "off"];

    /// Returns the name of the level.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EnvoyLogLevel::Named(name) => name,
            EnvoyLogLevel::Agent => match LevelFilter::current().into_level() {
                None => "off",
                Some(tracing::Level::ERROR) => "error",
                Some(tracing::Level::WARN) => "warning",
                Some(tracing::Level::INFO) => "info",
                Some(tracing::Level::DEBUG) => "debug",
                Some(tracing::Level::TRACE) => "trace",
            },
        }
    }
}

impl FlagValue for EnvoyLogLevel {
    const KIND: Kind = String::KIND;
    const ZERO: &'static str = "";
    const EXPECTED: Option<&'static str> =
        Some("trace, debug, info, warning, error, critical, off, or nothing");

    fn take(value: &Parsed<'_>) -> Result<EnvoyLogLevel, String> {
        let name = value.text().to_ascii_lowercase();
        let name = match name.as_str() {
            "" => return Ok(EnvoyLogLevel::Agent),
            "warn" => "warning",
            other => other,
        };
        let known = EnvoyLogLevel::NAMES.into_iter().find(|known| *known == name);
        known.map(EnvoyLogLevel::Named).ok_or_else(String::new)
    }

    fn render(&self) -> String {
        match self {
            EnvoyLogLevel::Agent => String::new(),
            EnvoyLogLevel::Named(name) => (*name).to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_starter_gets_its_own_arguments() {
        let with = |binary: &str, keep| EnvoyProcessConfig {
            envoy_binary: binary.to_owned(),
            envoy_keep_cap_netbindservice: keep,
            ..EnvoyProcessConfig::default()
        };
        assert!(with("/usr/bin/cilium-envoy-starter", false).starter_arguments().is_empty());
        assert_eq!(with("/usr/bin/cilium-envoy-starter", true).starter_arguments().len(), 2);
        assert!(with("cilium-envoy", true).starter_arguments().is_empty());
        assert_eq!(with("sh", true).binary().map(|path| path.ends_with("sh")), Some(true));
        assert!(
            ["/nowhere/envoy", "no-such-envoy", "", "/"]
                .iter()
                .all(|name| with(name, true).binary().is_none())
        );
    }
}
