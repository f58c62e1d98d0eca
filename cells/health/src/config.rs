//! The options of the health server.

use std::time::Duration;

/// Where the kubelet asks. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
pub struct HealthConfig {
    /// TCP port for agent health status API
    #[flag(default = 9879)]
    pub agent_health_port: u16,
    /// Maximum time the first status round may take
    #[flag(default = "5m")]
    pub status_collector_probe_check_timeout: Duration,
}
