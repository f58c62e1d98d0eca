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
    /// Address of kube-proxy's health check for load balancers (address:port, or :port for all); disabled if empty
    #[flag(default = "")]
    pub kube_proxy_replacement_healthz_bind_address: String,
    /// Fail probes without header require-k8s-connectivity while the API server is unreachable; unset by default
    #[flag(default = true)]
    pub agent_health_require_k8s_connectivity: bool,
    /// Interval of the status rounds
    #[flag(default = "5s")]
    pub status_collector_interval: Duration,
    /// Time without progress after which a job with work counts as hung, unless it has its own deadline
    #[flag(default = "1m")]
    pub status_collector_failure_threshold: Duration,
    /// Maximum time the first status round may take
    #[flag(default = "5m")]
    pub status_collector_probe_check_timeout: Duration,
}

/// Minimum deadline of the watchdog: it samples once a second, and a healthy job may show no progress in two samples.
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
