//! Metrics of the collection, by the names of Cilium.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::collect::Collected;

/// The family and protocol of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Kind {
    pub(crate) family: &'static str,
    pub(crate) protocol: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WithStatus {
    family: &'static str,
    protocol: &'static str,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Global {
    global: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Dump {
    area: &'static str,
    name: &'static str,
    family: &'static str,
}

/// Seconds of a round, as Cilium's client counts them.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The families.
#[derive(Debug, Clone)]
pub(crate) struct Numbers {
    runs: Family<WithStatus, Counter>,
    entries: Family<WithStatus, Gauge>,
    durations: Family<WithStatus, Histogram, fn() -> Histogram>,
    interval: Family<Global, Gauge>,
    fallbacks: Family<Kind, Counter>,
    resets: Family<Dump, Counter>,
}

impl Numbers {
    pub(crate) fn new(metrics: &metrics::Metrics, kinds: &[Kind]) -> Numbers {
        let numbers = Numbers {
            runs: Family::default(),
            entries: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            interval: Family::default(),
            fallbacks: Family::default(),
            resets: Family::default(),
        };
        for kind in kinds {
            // Batch reads are never interrupted and need no fallback: these stay zero.
            drop(numbers.fallbacks.get_or_create(kind));
            let dump = Dump { area: "conntrack", name: "dump_interrupts", family: kind.family };
            drop(numbers.resets.get_or_create(&dump));
        }
        let register = |name: &str, help: &str| (format!("datapath_conntrack_{name}"), help.to_owned());
        let (name, help) = register("gc_runs_total", "Garbage collection runs of connection tracking maps");
        metrics.register(&name, &help, numbers.runs.clone());
        let (name, help) = register("gc_entries", "Rows of connections that the last round found");
        metrics.register(&name, &help, numbers.entries.clone());
        let (name, help) = register("gc_duration_seconds", "Seconds of a round through a map");
        metrics.register(&name, &help, numbers.durations.clone());
        let (name, help) = register("gc_interval_seconds", "Seconds between two rounds");
        metrics.register(&name, &help, numbers.interval.clone());
        let (name, help) = register("gc_key_fallbacks_total", "Rows read one by one");
        metrics.register(&name, &help, numbers.fallbacks.clone());
        let (name, help) = register("dump_resets_total", "Rounds that began again");
        metrics.register(&name, &help, numbers.resets.clone());
        numbers
    }

    /// Records a pass through a map: its counts, `None` if it failed, and its duration.
    pub(crate) fn round(&self, kind: Kind, found: Option<&Collected>, took: Duration) {
        let label = |status| WithStatus { family: kind.family, protocol: kind.protocol, status };
        let done = label(if found.is_some() { "completed" } else { "uncompleted" });
        self.runs.get_or_create(&done).inc();
        self.durations.get_or_create(&done).observe(took.as_secs_f64());
        if let Some(found) = found {
            self.entries.get_or_create(&label("alive")).set(found.alive as i64);
            self.entries.get_or_create(&label("deleted")).set(found.deleted as i64);
        }
    }

    /// Records the time until the next run.
    pub(crate) fn interval(&self, interval: Duration) {
        self.interval.get_or_create(&Global { global: "global" }).set(interval.as_secs() as i64);
    }
}
