//! The series of one metric, within a bound of memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::{CounterWithExemplar, HistogramWithExemplars};
use tokio::time::Instant;

/// The maximum size of all series together, of all metrics.
pub(crate) const MAX_SERIES_BYTES: usize = 16 << 20;

/// The size of a series beside the values of its labels: table entry, counter, names of pods.
const SERIES_BYTES: usize = 256;

/// The size of a series of a histogram beside that.
const HISTOGRAM_BYTES: usize = 256;

/// The time that a series stays after its pod has ended: it may be scraped once more.
const LIFETIME: Duration = Duration::from_secs(60);

/// The buckets of durations, as Go's clients have them.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The character between values of labels in a key.
const SEPARATOR: char = '\0';

/// The memory of all families of the agent.
#[derive(Debug, Default)]
pub(crate) struct Memory(AtomicUsize);

impl Memory {
    /// Takes memory. Returns false if there is not as much left.
    fn take(&self, bytes: usize) -> bool {
        let take = |used: usize| Some(used + bytes).filter(|used| *used <= MAX_SERIES_BYTES);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    fn release(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The label of an exemplar.
type TraceLabel = [(&'static str, String); 1];

/// A request that a series has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exemplar {
    /// The id of its trace.
    pub(crate) trace: String,
    pub(crate) time: Option<SystemTime>,
}

impl Exemplar {
    fn label(&self) -> TraceLabel {
        [("traceID", self.trace.clone())]
    }
}

/// The value of a series.
#[derive(Debug)]
enum Value {
    Counter(u64, Option<Box<Exemplar>>),
    Histogram(Box<HistogramWithExemplars<TraceLabel>>),
}

#[derive(Debug)]
struct Series {
    value: Value,
    /// The pods that its labels name.
    pods: Vec<(String, String)>,
    /// When one of them was first missing.
    missing_since: Option<Instant>,
}

/// The description of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    /// Its name without the prefix; without `_total` if it is a counter.
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) is_histogram: bool,
}

/// A metric with its series by the values of their labels.
#[derive(Debug)]
pub(crate) struct Family {
    description: Description,
    labels: Vec<&'static str>,
    series: HashMap<Box<str>, Series>,
    /// Whether a series was refused: reported once.
    is_full: bool,
}

/// The values of the labels of a series. Built again and again without an allocation.
#[derive(Debug, Default)]
pub(crate) struct Key(String);

impl Key {
    /// Appends a value.
    pub(crate) fn push(&mut self, value: &str) {
        match value.contains(SEPARATOR) {
            // Names in packets may have any character.
            true => self.0.push_str(&value.replace(SEPARATOR, "\u{fffd}")),
            false => self.0.push_str(value),
        }
        self.0.push(SEPARATOR);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Family {
    pub(crate) fn new(description: Description, labels: Vec<&'static str>) -> Self {
        Self { description, labels, series: HashMap::new(), is_full: false }
    }

    /// Counts. `pods` are asked for if the series is new. Returns false if there is no memory for it.
    pub(crate) fn add(
        &mut self,
        key: &Key,
        memory: &Memory,
        observed: Option<f64>,
        exemplar: Option<Exemplar>,
        pods: impl FnOnce() -> Vec<(String, String)>,
    ) -> bool {
        if !self.series.contains_key(key.0.as_str()) {
            if !memory.take(self.bytes(&key.0)) {
                if !std::mem::replace(&mut self.is_full, true) {
                    tracing::warn!(
                        metric = self.description.name,
                        bytes = MAX_SERIES_BYTES,
                        "Metrics of flows have no memory for more series: choose contexts with fewer values"
                    );
                }
                return false;
            }
            let value = match self.description.is_histogram {
                true => Value::Histogram(Box::new(HistogramWithExemplars::new(BUCKETS.into_iter()))),
                false => Value::Counter(0, None),
            };
            self.series.insert(key.0.as_str().into(), Series { value, pods: pods(), missing_since: None });
        }
        match self.series.get_mut(key.0.as_str()).map(|series| &mut series.value) {
            Some(Value::Counter(count, latest)) => {
                *count += 1;
                if let Some(exemplar) = exemplar {
                    *latest = Some(Box::new(exemplar));
                }
            }
            Some(Value::Histogram(histogram)) => {
                let time = exemplar.as_ref().and_then(|exemplar| exemplar.time);
                let label = exemplar.map(|exemplar| exemplar.label());
                histogram.observe(observed.unwrap_or_default(), label, time);
            }
            None => {}
        }
        true
    }

    fn bytes(&self, key: &str) -> usize {
        // Names of pods are about as long as the labels in which they are.
        2 * key.len() + SERIES_BYTES + if self.description.is_histogram { HISTOGRAM_BYTES } else { 0 }
    }

    /// Whether a series names a pod.
    pub(crate) fn names_pods(&self) -> bool {
        self.series.values().any(|series| !series.pods.is_empty())
    }

    /// Removes series of pods that have ended a minute ago.
    pub(crate) fn sweep(&mut self, memory: &Memory, now: Instant, lives: impl Fn(&str, &str) -> bool) {
        let mut removed = Vec::new();
        for (key, series) in &mut self.series {
            if series.pods.iter().all(|(namespace, name)| lives(namespace, name)) {
                series.missing_since = None;
            } else if now.duration_since(*series.missing_since.get_or_insert(now)) >= LIFETIME {
                removed.push(key.clone());
            }
        }
        for key in removed {
            self.series.remove(&key);
            memory.release(self.bytes(&key));
            self.is_full = false;
        }
    }

    /// Removes all series.
    pub(crate) fn clear(&mut self, memory: &Memory) {
        memory.release(self.series.keys().map(|key| self.bytes(key)).sum());
        self.series.clear();
    }

    /// Writes the series, with their labels by name as Go's clients order them.
    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        if self.series.is_empty() {
            return Ok(());
        }
        let Description { name, help, is_histogram } = self.description;
        let kind = if is_histogram { MetricType::Histogram } else { MetricType::Counter };
        let mut encoder = encoder.encode_descriptor(name, help, None, kind)?;
        for (key, series) in &self.series {
            let values = key.split(SEPARATOR);
            let mut labels: Vec<_> = self.labels.iter().copied().zip(values).collect();
            labels.sort_unstable();
            let mut encoder = encoder.encode_family(&labels)?;
            match &series.value {
                Value::Counter(count, None) => encoder.encode_counter::<NoLabelSet, _, u64>(count, None)?,
                Value::Counter(count, Some(exemplar)) => {
                    let counter = CounterWithExemplar::<TraceLabel>::default();
                    counter.inc_by(count - 1, None, None);
                    counter.inc_by(1, Some(exemplar.label()), exemplar.time);
                    counter.encode(encoder)?;
                }
                Value::Histogram(histogram) => histogram.encode(encoder)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOWS: Description = Description { name: "x", help: "X", is_histogram: false };

    fn key(values: &[&str]) -> Key {
        let mut key = Key::default();
        values.iter().for_each(|value| key.push(value));
        key
    }

    #[tokio::test(start_paused = true)]
    async fn series_end_a_minute_after_one_of_their_pods() {
        let (memory, mut family) = (Memory::default(), Family::new(FLOWS, vec!["source", "destination"]));
        let pod = |name: &str| ("shop".to_owned(), name.to_owned());
        assert!(family.add(&key(&["a", "b"]), &memory, None, None, || vec![pod("a"), pod("b")]));
        assert!(family.add(&key(&["a", ""]), &memory, None, None, || vec![pod("a")]));
        assert!(family.add(&key(&["", ""]), &memory, None, None, Vec::new));
        let lives = |_: &str, name: &str| name == "a";
        family.sweep(&memory, Instant::now(), lives);
        tokio::time::advance(LIFETIME - Duration::from_secs(1)).await;
        family.sweep(&memory, Instant::now(), lives);
        assert_eq!(family.series.len(), 3);
        // A pod of the name is back, for a moment.
        family.sweep(&memory, Instant::now(), |_, _| true);
        family.sweep(&memory, Instant::now(), lives);
        tokio::time::advance(LIFETIME).await;
        family.sweep(&memory, Instant::now(), lives);
        assert_eq!(family.series.len(), 2);
        assert!(family.names_pods());
        family.clear(&memory);
        assert_eq!(memory.0.load(Ordering::Relaxed), 0, "all memory is released");
    }

    #[test]
    fn series_beyond_the_bound_are_refused_and_others_count() {
        let (memory, mut family) = (Memory::default(), Family::new(FLOWS, vec!["source"]));
        let wide = "x".repeat(1 << 20);
        let mut refused = 0;
        for number in 0..20 {
            let is_added = family.add(&key(&[&format!("{number}{wide}")]), &memory, None, None, Vec::new);
            refused += u32::from(!is_added);
        }
        assert!(refused > 10 && memory.0.load(Ordering::Relaxed) <= MAX_SERIES_BYTES, "{refused}");
        assert!(family.add(&key(&[&format!("0{wide}")]), &memory, None, None, Vec::new));
    }

    #[test]
    fn values_of_labels_cannot_be_those_of_others() {
        let (memory, mut family) = (Memory::default(), Family::new(FLOWS, vec!["a", "b"]));
        family.add(&key(&["x\0y", "z"]), &memory, None, None, Vec::new);
        family.add(&key(&["x", "y\0z"]), &memory, None, None, Vec::new);
        assert_eq!(family.series.len(), 2);
    }

    #[test]
    fn the_latest_trace_is_the_exemplar_of_a_series() {
        let (memory, histogram) = (Memory::default(), Description { is_histogram: true, ..FLOWS });
        let exemplar = |trace: &str| {
            let time = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(5));
            Some(Exemplar { trace: trace.to_owned(), time })
        };
        let mut families = [Family::new(FLOWS, vec!["a"]), Family::new(histogram, vec!["a"])];
        for family in &mut families {
            for trace in [exemplar("0af7"), exemplar("0af8"), None] {
                family.add(&key(&["b"]), &memory, Some(0.02), trace, Vec::new);
            }
        }
        let [counter, histogram] = families.map(|family| {
            let metrics = metrics::Metrics::default();
            metrics.register_collector(OneFamily(family));
            (metrics.open_metrics(), metrics.text())
        });
        assert!(
            counter.0.contains("cilium_x_total{a=\"b\"} 3 # {traceID=\"0af8\"} 1.0 5.0\n"),
            "{}",
            counter.0
        );
        let bucket = "cilium_x_bucket{le=\"0.025\",a=\"b\"} 3 # {traceID=\"0af8\"} 0.02 5.0\n";
        assert!(histogram.0.contains(bucket), "{}", histogram.0);
        assert!(counter.1.contains("cilium_x_total{a=\"b\"} 3\n"), "{}", counter.1);
        assert!(histogram.1.contains("le=\"0.025\",a=\"b\"} 3\n"), "{}", histogram.1);
    }

    #[derive(Debug)]
    struct OneFamily(Family);

    impl prometheus_client::collector::Collector for OneFamily {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
            self.0.encode(&mut encoder)
        }
    }
}
