//! Options.

use std::time::Duration;

/// Options of the API server client. Changes take effect at the next start; the named files are followed.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Kubernetes", check = |config: &Self| config.check())]
pub struct ApiServerConfig {
    /// Connect to Kubernetes; without, cluster objects come from folders only
    #[flag(name = "enable-k8s", default = true)]
    pub enabled: bool,
    /// Kubeconfig with server and credentials; empty for the service account of the agent's pod. Followed
    #[flag(name = "k8s-kubeconfig-path", default = "")]
    pub kubeconfig: String,
    /// Addresses of API servers, tried in turn when one fails; empty for the one of the credentials
    #[flag(name = "k8s-api-server-urls", default = "")]
    pub urls: Vec<String>,
    /// Requests a second; 0 for no limit. A watch counts once
    #[flag(name = "k8s-client-qps", default = 10.0)]
    pub qps: f64,
    /// Requests at once before the limit counts
    #[flag(name = "k8s-client-burst", default = 20)]
    pub burst: u32,
    /// How long connecting may take; 0 switches the client off
    #[flag(name = "k8s-client-connection-timeout", default = "30s")]
    pub connect_timeout: Duration,
    /// Time between two signs of life of an idle connection, which the kernel sends; 0 for none
    #[flag(name = "k8s-client-connection-keep-alive", default = "30s")]
    pub keep_alive: Duration,
    /// Silence after which the server is asked for a sign of life, and how long that may take; 0 for never
    #[flag(name = "k8s-heartbeat-timeout", default = "30s")]
    pub heartbeat: Duration,
    /// Silence after which the agent ends if a kind of objects has not been listed
    #[flag(name = "k8s-sync-timeout", default = "3m", hidden)]
    pub sync_timeout: Duration,
    /// How long definitions of kinds may be missing before the agent ends; 0 for not to wait
    #[flag(name = "crd-wait-timeout", default = "5m")]
    pub crd_wait_timeout: Duration,
}

/// The minimum of timeouts. It rejects numbers without a unit, which are parsed as nanoseconds.
const MIN_TIMEOUT: Duration = Duration::from_millis(100);

impl ApiServerConfig {
    fn check(&self) -> Result<(), String> {
        if !self.qps.is_finite() || self.qps < 0.0 {
            return Err(format!(
                "k8s-client-qps: {} is wrong: give requests a second, 0 for no limit",
                self.qps
            ));
        }
        for (name, time) in [
            ("k8s-client-connection-timeout", self.connect_timeout),
            ("k8s-client-connection-keep-alive", self.keep_alive),
            ("k8s-heartbeat-timeout", self.heartbeat),
            ("k8s-sync-timeout", self.sync_timeout),
            ("crd-wait-timeout", self.crd_wait_timeout),
        ] {
            if !time.is_zero() && time < MIN_TIMEOUT {
                return Err(format!(
                    "{name}: {time:?} is wrong: give at least {MIN_TIMEOUT:?}, with a unit, as in 30s"
                ));
            }
        }
        Ok(())
    }
}
