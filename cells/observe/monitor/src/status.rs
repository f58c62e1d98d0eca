//! The rings in the agent's status.

use std::sync::atomic::Ordering;

use api::StatusSource;
use api_models::MonitorStatus;

use crate::hub::Monitor;
use crate::ring::PAGES;

/// Returns the source of `nodeMonitor`, which is absent while no ring is open.
pub(crate) fn source(monitor: std::sync::Arc<Monitor>) -> StatusSource {
    let cpus = bpf::possible_cpus();
    StatusSource::new("nodeMonitor", move |status| {
        let counters = &monitor.counters;
        let page_size = counters.page_size.load(Ordering::Relaxed);
        status.node_monitor = (page_size > 0).then(|| MonitorStatus {
            cpus: cpus as i64,
            lost: counters.lost.load(Ordering::Relaxed) as i64,
            npages: PAGES as i64,
            pagesize: page_size as i64,
            unknown: 0,
        });
    })
}
