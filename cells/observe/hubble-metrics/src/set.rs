//! The metrics of the agent, which count events and are scraped.

use std::sync::Arc;
use std::time::SystemTime;

use hubble::{Event, Filters};
use hubble_api::flow::{Flow, LostEvent};
use parking_lot::{Mutex, RwLock};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Counters;
use tokio::time::Instant;

use crate::family::{Exemplar, Family, Key, Memory};
use crate::spec::{BadMetrics, Spec};

/// The metrics. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct MetricSet(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    metrics: RwLock<Vec<Arc<Metric>>>,
    memory: Memory,
    refused: Counters<Refused, Counter>,
    lost: Counters<Lost, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    metric: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Lost {
    source: String,
}

#[derive(Debug)]
struct Metric {
    spec: Spec,
    filters: Filters,
    /// Shared with the metric before it, if only the filters have changed. Each has a lock of its own, which is held
    /// while it is scraped: flows wait for one family at most.
    families: Arc<[Mutex<Family>]>,
}

impl Metric {
    fn new(spec: Spec, families: Option<Arc<[Mutex<Family>]>>) -> Result<Self, BadMetrics> {
        let filters = spec.filters()?;
        let families = families.unwrap_or_else(|| {
            let new = |(description, labels)| Mutex::new(Family::new(description, labels));
            spec.families().into_iter().map(new).collect()
        });
        Ok(Self { spec, filters, families })
    }

    fn count(&self, flow: &Flow, set: &Inner) {
        if !self.filters.select(flow) {
            return;
        }
        let mut key = Key::default();
        self.spec.kind.count(flow, &mut |count| {
            let context = &self.spec.context;
            key.clear();
            count.values.iter().for_each(|value| key.push(value));
            context.values(flow, count.swapped, |value| key.push(value));
            let mut family = self.families[count.family].lock();
            let pods = || context.pods(flow, count.swapped);
            let exemplar = count.trace.map(|trace| Exemplar { trace: trace.to_owned(), time: time(flow) });
            if !family.add(&key, &set.memory, count.observed, exemplar, pods) {
                set.refused.get_or_create(&Refused { metric: self.spec.name.clone() }).inc();
            }
        });
    }
}

/// Returns the time of a flow.
fn time(flow: &Flow) -> Option<SystemTime> {
    SystemTime::try_from(flow.time?).ok()
}

impl MetricSet {
    /// Replaces the metrics. One with the same options keeps its series.
    ///
    /// # Errors
    /// A filter is invalid: nothing has changed.
    pub(crate) fn replace(&self, specs: Vec<Spec>) -> Result<(), BadMetrics> {
        let old = self.0.metrics.read().clone();
        let new = specs.into_iter().map(|spec| {
            let same = old.iter().find(|metric| {
                let Spec { name, kind, context, .. } = &metric.spec;
                (name, kind, context) == (&spec.name, &spec.kind, &spec.context)
            });
            Ok(Arc::new(Metric::new(spec, same.map(|metric| metric.families.clone()))?))
        });
        let new = new.collect::<Result<Vec<_>, BadMetrics>>()?;
        *self.0.metrics.write() = new.clone();
        let is_kept =
            |metric: &&Arc<Metric>| new.iter().any(|new| Arc::ptr_eq(&new.families, &metric.families));
        for metric in old.iter().filter(|metric| !is_kept(metric)) {
            metric.families.iter().for_each(|family| family.lock().clear(&self.0.memory));
        }
        Ok(())
    }

    /// Returns the number of metrics.
    pub(crate) fn len(&self) -> usize {
        self.0.metrics.read().len()
    }

    /// Counts an event.
    pub(crate) fn count(&self, event: &Event) {
        match event {
            Event::Flow(flow) => {
                self.0.metrics.read().iter().for_each(|metric| metric.count(flow, &self.0));
            }
            Event::Lost(lost) => self.lost(lost),
            _ => {}
        }
    }

    fn lost(&self, lost: &LostEvent) {
        let source = lost.source().as_str_name().to_ascii_lowercase();
        self.0.lost.get_or_create(&Lost { source }).inc_by(lost.num_events_lost);
    }

    /// Registers all metrics.
    pub(crate) fn register(&self, registry: &metrics::Metrics) {
        registry.register("lost_events_total", "Number of lost events", self.0.lost.clone());
        registry.register(
            "metrics_refused_total",
            "Flows that a metric has not counted as there is no memory for more series",
            self.0.refused.clone(),
        );
        registry.register_collector(self.clone());
    }

    /// Whether a series names a pod, so that it may have to be removed.
    pub(crate) fn names_pods(&self) -> bool {
        let metrics = self.0.metrics.read().clone();
        metrics.iter().any(|metric| metric.families.iter().any(|family| family.lock().names_pods()))
    }

    /// Removes series of pods that have ended a minute ago.
    pub(crate) fn sweep(&self, now: Instant, lives: impl Fn(&str, &str) -> bool) {
        for metric in self.0.metrics.read().clone() {
            metric.families.iter().for_each(|family| family.lock().sweep(&self.0.memory, now, &lives));
        }
    }
}

impl Collector for MetricSet {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let metrics = self.0.metrics.read().clone();
        let mut families = metrics.iter().flat_map(|metric| metric.families.iter());
        families.try_for_each(|family| family.lock().encode(&mut encoder))
    }
}

#[cfg(test)]
mod tests;
