//! The options of the metrics.

/// What is exported and where. A change of the address takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
pub struct MetricsConfig {
    /// IP:Port on which to serve prometheus metrics (pass ":Port" to bind on all interfaces, "" is off)
    #[flag(default = "")]
    pub prometheus_serve_addr: String,
    /// Metrics that should be enabled or disabled from the default metric list. (+metric_foo to enable metric_foo, -metric_bar to disable metric_bar)
    #[flag(default = "", live)]
    pub metrics: Vec<String>,
}
