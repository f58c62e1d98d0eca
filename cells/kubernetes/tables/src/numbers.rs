//! Metrics of tables, under Cilium's names where they exist.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use k8s_types::Kind;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObjectLabels {
    source: String,
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReceivedLabels {
    scope: &'static str,
    action: &'static str,
    valid: bool,
    equal: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProcessedLabels {
    scope: &'static str,
    action: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LastLabels {
    source: &'static str,
    scope: &'static str,
    action: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ListLabels {
    scope: &'static str,
}

/// The counters of events of all sources, and the gauges of invalid objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers {
    invalid: Family<ObjectLabels, Gauge>,
    received: Family<ReceivedLabels, Counter>,
    processed: Family<ProcessedLabels, Counter>,
    last: Family<LastLabels, Gauge<f64, AtomicU64>>,
    lists: Family<ListLabels, Gauge<f64, AtomicU64>>,
}

/// A kind of event of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Create,
    Update,
    Delete,
}

/// The outcome of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The row was written.
    Written,
    /// The table has an equal row already.
    Equal,
    /// The object belongs to another source.
    Foreign,
    /// The object is invalid.
    Invalid,
}

impl Action {
    /// Returns the action for an existing object: an update if it existed before, else a create.
    pub(crate) fn of(before: bool) -> Action {
        if before { Action::Update } else { Action::Create }
    }

    fn name(self) -> &'static str {
        match self {
            Action::Create => "create",
            Action::Update => "update",
            Action::Delete => "delete",
        }
    }
}

impl Numbers {
    pub(crate) fn register(&self, metrics: &metrics::Metrics) {
        let text = "Cluster objects that cannot be read, of which the version before stays";
        metrics.register("k8s_wrong_objects", text, self.invalid.clone());
        let text = "Events about cluster objects that have come, by kind, action, and whether they were valid or told nothing new";
        metrics.register("kubernetes_events_received_total", text, self.received.clone());
        let text = "Events about cluster objects that have changed a table or should have, by kind, action and result";
        metrics.register("kubernetes_events_total", text, self.processed.clone());
        let text = "When the last event came, in seconds since 1970, by source, kind and action";
        metrics.register("event_ts", text, self.last.clone());
        let text = "How long the last list of all objects of a kind took, in seconds";
        metrics.register("kubernetes_resource_sync_duration", text, self.lists.clone());
    }

    /// Returns the gauge of invalid objects of a kind of a source.
    pub(crate) fn invalid(&self, kind: Kind, source: &str) -> Gauge {
        self.invalid.get_or_create(&ObjectLabels { source: source.to_owned(), kind: kind.name() }).clone()
    }

    /// Records the duration of a list of all objects of a kind.
    pub(crate) fn listed(&self, kind: Kind, duration: Duration) {
        self.lists.get_or_create(&ListLabels { scope: kind.name() }).set(duration.as_secs_f64());
    }

    /// Counts events of objects of a kind.
    pub(crate) fn events(&self, kind: Kind, action: Action, outcome: Outcome, count: usize) {
        let (scope, action, count) = (kind.name(), action.name(), count as u64);
        let (valid, equal) = (outcome != Outcome::Invalid, outcome == Outcome::Equal);
        self.received.get_or_create(&ReceivedLabels { scope, action, valid, equal }).inc_by(count);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.last.get_or_create(&LastLabels { source: "k8s", scope, action }).set(now.as_secs_f64());
        let status = match outcome {
            Outcome::Equal => return,
            Outcome::Written => "success",
            Outcome::Foreign | Outcome::Invalid => "failed",
        };
        self.processed.get_or_create(&ProcessedLabels { scope, action, status }).inc_by(count);
    }
}
