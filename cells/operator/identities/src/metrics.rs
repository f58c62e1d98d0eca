//! Metrics, under Cilium's names.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

/// Upper bounds of delays in seconds, as in Cilium.
const SECONDS: [f64; 16] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 900.0, 1800.0, 3600.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    resource: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DelayLabels {
    resource: &'static str,
    phase: &'static str,
}

/// Counts and latencies of the work queue. The count is a gauge, as a counter's name would get a suffix that Cilium's name
/// lacks.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    events: Family<EventLabels, Gauge>,
    delays: Family<DelayLabels, Histogram, fn() -> Histogram>,
}

impl Default for Numbers {
    fn default() -> Numbers {
        let delays = Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram);
        Numbers { events: Family::default(), delays }
    }
}

impl Numbers {
    pub(crate) fn register(&self, metrics: &metrics::Metrics) {
        let help = "Counts processed events by CID controller work queues labeled by outcome";
        metrics.register("cid_controller_work_queue_event_count", help, self.events.clone());
        let help = "Duration of CID controller work queues enqueuing and processing latencies in seconds";
        metrics.register("cid_controller_work_queue_latency", help, self.delays.clone());
    }

    /// Counts a pod whose labels were read.
    pub(crate) fn pod(&self) {
        self.events.get_or_create(&EventLabels { resource: "pod", outcome: "success" }).inc();
    }

    /// Counts a creation that has ended, with the time for which its labels had waited, and the time that it took.
    pub(crate) fn identity(&self, is_created: bool, waited: Duration, took: Duration) {
        let outcome = if is_created { "success" } else { "fail" };
        self.events.get_or_create(&EventLabels { resource: "cid", outcome }).inc();
        for (phase, delay) in [("enqueued", waited), ("processing", took)] {
            self.delays.get_or_create(&DelayLabels { resource: "cid", phase }).observe(delay.as_secs_f64());
        }
    }
}
