//! Metrics, under Cilium's names.

use std::sync::atomic::AtomicI64;

use prometheus_client::metrics::gauge::Gauge;

/// The numbers of operations so far. Cilium's names do not end with `_total`, as those of counters do here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) inserts: Gauge<i64, AtomicI64>,
    pub(crate) deletes: Gauge<i64, AtomicI64>,
    pub(crate) refreshes: Gauge<i64, AtomicI64>,
    pub(crate) lookups: Gauge<i64, AtomicI64>,
}

impl Numbers {
    pub(crate) fn register(&self, metrics: &metrics::Metrics) {
        for (name, help, metric) in [
            ("neighbor_entry_insert_count", "Number of neighbor entries inserted", &self.inserts),
            ("neighbor_entry_delete_count", "Number of neighbor entries deleted", &self.deletes),
            ("neighbor_entry_refresh_count", "Number of neighbor entries refreshed", &self.refreshes),
            ("neighbor_nexthop_lookup_count", "Number of next hop lookups", &self.lookups),
        ] {
            metrics.register_off(name, help, metric.clone());
        }
    }
}
