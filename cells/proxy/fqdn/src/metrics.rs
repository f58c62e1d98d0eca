//! Metrics, by the names of Cilium.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

/// The families.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    /// Names that collections have removed.
    pub(crate) collected: Counter,
    /// Selectors of policies in force.
    pub(crate) selectors: Gauge,
    /// Answers that were released before the datapath knew their addresses.
    pub(crate) late: Counter,
}

impl Counters {
    pub(crate) fn register(&self, metrics: &metrics::Metrics) {
        let help = "Number of DNS names removed by garbage collection";
        metrics.register("fqdn_gc_deletions_total", help, self.collected.clone());
        let help = "Number of selectors of DNS names (toFQDNs) of policies";
        metrics.register("fqdn_selectors", help, self.selectors.clone());
        let help = "Number of DNS answers released before the datapath knew their addresses";
        metrics.register("proxy_datapath_update_timeout_total", help, self.late.clone());
    }
}
