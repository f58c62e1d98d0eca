//! The options, in Cilium's spelling. Changes take effect at the next start, those of the file at once.

/// Metrics of flows.
#[derive(Clone, Debug, hive::Config)]
#[config(group = "Hubble")]
pub struct HubbleMetricsConfig {
    /// Address on which metrics of flows are served, such as :9965; none if empty, and then nothing is counted
    #[flag(default = "")]
    pub hubble_metrics_server: String,
    /// Metrics of flows, separated by spaces: NAME[:OPTION[=VALUE|VALUE]][;OPTION...]
    #[flag(default = "")]
    pub hubble_metrics: String,
    /// YAML file with metrics of flows, which is followed while the agent runs
    #[flag(default = "")]
    pub hubble_dynamic_metrics_config_path: String,
}
