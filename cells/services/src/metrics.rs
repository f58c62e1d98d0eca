//! Metrics of services, by the names of the original.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// What happened to a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Add,
    Update,
    Delete,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Event {
    action: &'static str,
}

/// `cilium_services_events_total`
#[derive(Debug, Clone, Default)]
pub(crate) struct Events(Family<Event, Counter>);

impl Events {
    pub(crate) fn count(&self, action: Action) {
        let action = match action {
            Action::Add => "add",
            Action::Update => "update",
            Action::Delete => "delete",
        };
        self.0.get_or_create(&Event { action }).inc();
    }

    pub(crate) fn register(&self, metrics: &metrics::Metrics) {
        let help = "Number of services events labeled by action type";
        metrics.register("services_events_total", help, self.0.clone());
    }
}
