//! Metrics, under Cilium's names.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::Instant;

use crate::requests::Run;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Status {
    status: &'static str,
    identity_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct IdentityOutcome {
    outcome: &'static str,
    identity_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// The counts of all collections. Those of runs and endpoints are gauges, as a counter's name would get a suffix that Cilium's
/// names lack.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers {
    entries: Family<Status, Gauge>,
    runs: Family<IdentityOutcome, Gauge>,
    latency: Family<IdentityOutcome, Gauge<f64, std::sync::atomic::AtomicU64>>,
    endpoints: Family<Outcome, Gauge>,
    pub(crate) unmanaged: Gauge,
}

impl Numbers {
    pub(crate) fn register(&self, metrics: &metrics::Metrics) {
        let help = "The number of alive and deleted identities at the end of a garbage collector run";
        metrics.register("identity_gc_entries", help, self.entries.clone());
        let help = "The number of times identity garbage collector has run";
        metrics.register("identity_gc_runs", help, self.runs.clone());
        let help = "The duration of the last successful identity GC run";
        metrics.register("identity_gc_latency", help, self.latency.clone());
        let help = "The number of times endpoint objects have been garbage collected";
        metrics.register("endpoint_gc_objects", help, self.endpoints.clone());
        let help = "The number of pods that have been identified to be unmanaged and have been restarted";
        metrics.register("unmanaged_pods", help, self.unmanaged.clone());
    }

    /// Counts a run of the collection of identities.
    pub(crate) fn identities(&self, run: &Run, alive: usize, deleted: usize, begun: Instant) {
        for (status, count) in [("alive", alive), ("deleted", deleted)] {
            let status = Status { status, identity_type: "crd" };
            self.entries.get_or_create(&status).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let outcome = if run.failures.is_empty() { "success" } else { "fail" };
        let outcome = IdentityOutcome { outcome, identity_type: "crd" };
        self.runs.get_or_create(&outcome).inc();
        self.latency.get_or_create(&outcome).set(begun.elapsed().as_secs_f64());
    }

    /// Counts a run of the collection of endpoints.
    pub(crate) fn endpoints(&self, run: &Run) {
        for (outcome, count) in [("success", run.done), ("fail", run.failures.len())] {
            self.endpoints
                .get_or_create(&Outcome { outcome })
                .inc_by(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
