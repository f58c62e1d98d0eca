//! Metrics, under Cilium's names.

use std::time::Duration;

use metrics::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::row::{CheckResult, Reachability};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabels {
    source_cluster: String,
    source_node_name: String,
    r#type: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LatencyLabels {
    source_cluster: String,
    source_node_name: String,
    r#type: &'static str,
    protocol: &'static str,
    address_type: &'static str,
}

/// Upper bounds of the buckets, in seconds.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The latency of a failed check: its time limit.
const FAILED: Duration = super::prober::core::CHECK_TIMEOUT;

/// The number of nodes by state; of their own addresses, and of their health endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) nodes: ByState,
    pub(crate) endpoints: ByState,
}

/// Numbers by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ByState {
    pub(crate) reachable: i64,
    pub(crate) unreachable: i64,
    pub(crate) unknown: i64,
}

impl ByState {
    /// Adds `by` to the number of a state.
    pub(crate) fn add(&mut self, state: Option<Reachability>, by: i64) {
        match state {
            Some(Reachability::Reachable) => self.reachable += by,
            Some(Reachability::Unreachable) => self.unreachable += by,
            Some(Reachability::Unknown) => self.unknown += by,
            None => {}
        }
    }
}

type Latencies = Family<LatencyLabels, Histogram, fn() -> Histogram>;

/// The metrics of the prober.
#[derive(Clone)]
pub(crate) struct HealthMetrics {
    status: Family<StatusLabels, Gauge>,
    latency: Latencies,
    unreachable_nodes: Gauge,
    unreachable_endpoints: Gauge,
}

impl HealthMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let latency = Latencies::new_with_constructor(|| Histogram::new(BUCKETS));
        let text = "Number of nodes by the last observed status of both ICMP and HTTP connectivity to them";
        let status = metrics.added("node_health_connectivity_status", text, Family::default());
        let text = "Latency of the probes of other nodes, in seconds; that of a failed one is its time limit";
        let latency = metrics.added("node_health_connectivity_latency_seconds", text, latency);
        let text = "Number of nodes that cannot be reached";
        let unreachable_nodes = metrics.added("unreachable_nodes", text, Gauge::default());
        let text = "Number of health endpoints that cannot be reached";
        let unreachable_endpoints = metrics.added("unreachable_health_endpoints", text, Gauge::default());
        Self { status, latency, unreachable_nodes, unreachable_endpoints }
    }

    /// Exports the numbers, as those of this node.
    pub(crate) fn set(&self, (cluster, node): (&str, &str), counts: &Counts) {
        for (r#type, by) in [("node", counts.nodes), ("endpoint", counts.endpoints)] {
            let states =
                [("reachable", by.reachable), ("unreachable", by.unreachable), ("unknown", by.unknown)];
            for (status, count) in states {
                let (source_cluster, source_node_name) = (cluster.to_owned(), node.to_owned());
                let labels = StatusLabels { source_cluster, source_node_name, r#type, status };
                self.status.get_or_create(&labels).set(count);
            }
        }
        self.unreachable_nodes.set(counts.nodes.unreachable);
        self.unreachable_endpoints.set(counts.endpoints.unreachable);
    }

    /// Records a check.
    pub(crate) fn observe(
        &self,
        (cluster, node): (&str, &str),
        r#type: &'static str,
        protocol: &'static str,
        is_primary: bool,
        result: &CheckResult,
    ) {
        let labels = LatencyLabels {
            source_cluster: cluster.to_owned(),
            source_node_name: node.to_owned(),
            r#type,
            protocol,
            address_type: if is_primary { "primary" } else { "secondary" },
        };
        let latency = result.as_ref().copied().unwrap_or(FAILED);
        self.latency.get_or_create(&labels).observe(latency.as_secs_f64());
    }
}
