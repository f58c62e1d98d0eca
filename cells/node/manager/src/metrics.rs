//! Metrics, under Cilium's names.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::source::NodeSource;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    event_type: &'static str,
    source: &'static str,
}

/// A change that a source reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventType {
    Add,
    Update,
    Delete,
}

/// The metrics of nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) nodes: Gauge,
    /// Nodes of which the entries in the kernel were compared.
    pub(crate) validations: Counter,
    events: Family<EventLabels, Counter>,
}

impl Numbers {
    pub(crate) fn register(&self, metrics: &metrics::Metrics) {
        metrics.register("nodes_all_num", "Number of nodes managed", self.nodes.clone());
        let text = "Number of node events received, by event and source";
        metrics.register("nodes_all_events_received_total", text, self.events.clone());
        let text = "Number of validation calls to implement the datapath implementation of a node";
        metrics.register("nodes_all_datapath_validations_total", text, self.validations.clone());
    }

    pub(crate) fn event(&self, event_type: EventType, source: NodeSource) {
        let event_type = match event_type {
            EventType::Add => "add",
            EventType::Update => "update",
            EventType::Delete => "delete",
        };
        self.events.get_or_create(&EventLabels { event_type, source: source.name() }).inc();
    }
}
