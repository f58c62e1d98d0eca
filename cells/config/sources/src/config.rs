//! Options.

use crate::Error;
use crate::spec::{ConfigSource, Overrides};

/// Where the configuration comes from besides files. Changes take effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Configuration")]
#[config(check = |config: &Self| config.parse().map(drop).map_err(|error| error.to_string()))]
pub struct SourcesConfig {
    /// Follow the configuration while the agent runs: its file or folder, and the cluster objects of config-sources
    #[flag(default = true)]
    pub enable_dynamic_config: bool,
    /// Bring live options into force as the cluster objects that config-sources was set to change; else only tell
    #[flag(default = true)]
    pub apply_dynamic_config: bool,
    /// Cluster objects with configuration as JSON, those that count most last; build-config writes it
    #[flag(
        default = "[{\"kind\":\"config-map\",\"namespace\":\"kube-system\",\"name\":\"cilium-config\"}]",
        hidden
    )]
    pub config_sources: String,
    /// Keys that objects after the first may or may not change, as JSON; build-config writes it
    #[flag(default = "{\"allowConfigKeys\":null,\"denyConfigKeys\":null}", hidden)]
    pub config_sources_overrides: String,
}

impl SourcesConfig {
    /// Parses the objects, in order, and the keys that later ones may change.
    pub fn parse(&self) -> Result<(Vec<ConfigSource>, Overrides), Error> {
        let sources = ConfigSource::parse_list(&self.config_sources)?;
        Ok((sources, Overrides::parse(&self.config_sources_overrides)?))
    }
}
