//! Options.

/// Addresses of the operator. A change takes effect at the next start.
#[derive(hive::Config, Clone, Debug)]
#[config(group = "Operator API")]
pub struct OperatorApiConfig {
    /// Address of the operator's API, `host:port`; localhost is both of the loopback addresses
    #[flag(default = "localhost:9234")]
    pub operator_api_serve_addr: String,
    /// Serve metrics for Prometheus
    #[flag(default = false)]
    pub enable_metrics: bool,
    /// Where metrics are served with enable-metrics: `host:port`, or `:port` for all addresses
    #[flag(default = ":9963")]
    pub operator_prometheus_serve_addr: String,
}
