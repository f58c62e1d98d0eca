//! The options of the health server.

use std::time::Duration;

use crate::error::Error;
use crate::proxy;

/// Options of the probes and of the watchdog. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Health", check = |config: &Self| config.check().map_err(|error| error.to_string()))]
pub struct HealthConfig {
    /// TCP port for agent health status API
    #[flag(default = 9879)]
    pub agent_health_port: u16,
    /// Where load balancers ask as they ask kube-proxy (address:port, or :port for all); nowhere if empty
    #[flag(default = "")]
    pub kube_proxy_replacement_healthz_bind_address: String,
    /// Whether a lost API server fails probes that do not say; as the original, only if it is set
    #[flag(default = true)]
    pub agent_health_require_k8s_connectivity: bool,
    /// Time between two rounds of the status
    #[flag(default = "5s")]
    pub status_collector_interval: Duration,
    /// How long a job may have work and not move before the agent counts as hung; jobs may have deadlines of their own
    #[flag(default = "1m")]
    pub status_collector_failure_threshold: Duration,
    /// Maximum time the first status round may take
    #[flag(default = "5m")]
    pub status_collector_probe_check_timeout: Duration,
}

/// Shortest deadline of the watchdog: it samples once a second, and a healthy job may show no step in two samples.
const LEAST_DEADLINE: Duration = Duration::from_secs(3);

impl HealthConfig {
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.kube_proxy_replacement_healthz_bind_address.is_empty() {
            proxy::address(&self.kube_proxy_replacement_healthz_bind_address)?;
        }
        let limits = [
            ("status-collector-interval", self.status_collector_interval, Duration::from_millis(100)),
            ("status-collector-failure-threshold", self.status_collector_failure_threshold, LEAST_DEADLINE),
        ];
        match limits.into_iter().find(|(_, value, least)| value < least) {
            Some((option, value, least)) => Err(Error::TooShort { option, value, least }),
            None => Ok(()),
        }
    }
}
