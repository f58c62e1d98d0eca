//! The options of the metrics.

use std::time::Duration;

/// Options of the exported metrics and their server. A change of the address takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Metrics", check = check)]
pub struct MetricsConfig {
    /// IP:Port on which to serve prometheus metrics (pass ":Port" to bind on all interfaces, "" is off)
    #[flag(default = "")]
    pub prometheus_serve_addr: String,
    /// Metrics that should be enabled or disabled from the default metric list. (+metric_foo to enable metric_foo,
    /// -metric_bar to disable metric_bar)
    #[flag(default = "", live)]
    pub metrics: Vec<String>,
    /// Set the internal metrics sampling interval
    #[flag(default = "5m")]
    pub metrics_sampling_interval: Duration,
}

/// Shortest interval between two samples.
const MIN_SAMPLING_INTERVAL: Duration = Duration::from_millis(10);

fn check(config: &MetricsConfig) -> Result<(), String> {
    let interval = config.metrics_sampling_interval;
    if interval < MIN_SAMPLING_INTERVAL {
        return Err(format!("metrics-sampling-interval={interval:?} is less than {MIN_SAMPLING_INTERVAL:?}"));
    }
    Ok(())
}
