//! Metrics, by the names of Cilium.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    type_url: String,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SubsystemLabels {
    subsystem: &'static str,
}

/// The subsystem of the Envoy that the agent starts, as Cilium has it.
const STARTER: SubsystemLabels = SubsystemLabels { subsystem: "cilium-envoy-starter" };

/// The families.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    events: Family<EventLabels, Counter>,
    starts: Family<SubsystemLabels, Counter>,
}

impl Counters {
    pub(crate) fn register(&self, metrics: &metrics::Metrics) {
        let help = "Number of responses to Envoy, by type and answer";
        metrics.register("xds_events_count", help, self.events.clone());
        let help = "Number of child processes that were started, by subsystem";
        metrics.register("subprocess_start_total", help, self.starts.clone());
    }

    /// Counts a start of Envoy.
    pub(crate) fn started(&self) {
        self.starts.get_or_create(&STARTER).inc();
    }

    /// Counts an answer of a client.
    pub(crate) fn answered(&self, type_url: &str, is_accepted: bool) {
        let status = if is_accepted { "ack" } else { "nack" };
        let labels = EventLabels { type_url: type_url.to_owned(), status };
        self.events.get_or_create(&labels).inc();
    }
}
