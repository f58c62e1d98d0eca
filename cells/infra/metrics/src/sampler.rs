//! The values of all metrics in the last hours: a sample every few minutes, kept in memory.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::registry::Metrics;
use crate::samples::{Histogram, Number, Sample, samples};

/// Number of samples that are kept of each metric.
pub(crate) const KEPT: usize = 24;

/// Maximum number of sampled metrics; bounds the memory to about a megabyte.
const METRICS: usize = 2000;

/// Name prefixes of metrics without a useful history.
const LEFT_OUT: [&str; 2] = ["cilium_event_ts", "cilium_feature_"];

/// The samples of all metrics, including those that are not exported.
pub(crate) struct Sampler {
    /// The time between two samples.
    pub(crate) interval: Duration,
    series: Mutex<BTreeMap<(String, String), Series>>,
}

/// The samples of one metric.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) values: Values,
    /// Bit set of present samples, the newest in the lowest bit: a histogram without observations has none.
    present: u32,
    updated: Instant,
}

#[derive(Clone, Debug)]
pub(crate) enum Values {
    Plain(Ring),
    /// Median, 90th and 99th percentile of the observations between two samples.
    Histogram {
        percentiles: Box<[Ring; 3]>,
        before: Histogram,
    },
}

/// Samples, the newest first; missing ones are 0.
pub(crate) type Ring = [f32; KEPT];

impl Series {
    fn new(sample: &Sample, now: Instant) -> Self {
        let empty = [0.0; KEPT];
        let values = match sample.value {
            Number::Plain(_) => Values::Plain(empty),
            Number::Histogram(_) => {
                Values::Histogram { percentiles: Box::new([empty; 3]), before: Histogram::default() }
            }
        };
        Series { values, present: 0, updated: now }
    }

    #[cfg(test)]
    pub(crate) fn of(ring: Ring, present: u32) -> Self {
        Series { values: Values::Plain(ring), present, updated: Instant::now() }
    }

    /// Whether the sample at a position is present; 0 is the newest.
    pub(crate) fn present(&self, at: usize) -> bool {
        at < KEPT && self.present >> at & 1 == 1
    }

    fn add(&mut self, value: Number, now: Instant) {
        self.updated = now;
        let present = match (&mut self.values, value) {
            (Values::Plain(ring), Number::Plain(value)) => {
                push(ring, value);
                true
            }
            (Values::Histogram { percentiles, before }, Number::Histogram(histogram)) => {
                let any = histogram.total() != before.total();
                let values = if any { histogram.since(before).percentiles() } else { [0.0; 3] };
                percentiles.iter_mut().zip(values).for_each(|(ring, value)| push(ring, value));
                *before = histogram;
                any
            }
            // Not expected: a name always has the same kind.
            _ => return,
        };
        self.present = self.present << 1 | u32::from(present);
    }
}

fn push(ring: &mut Ring, value: f64) {
    ring.rotate_right(1);
    ring[0] = value as f32;
}

impl Sampler {
    pub(crate) fn new(interval: Duration) -> Self {
        Sampler { interval, series: Mutex::default() }
    }

    /// Samples all metrics; returns their number.
    pub(crate) fn collect(&self, metrics: &Metrics, now: Instant) -> usize {
        let mut found = samples(&metrics.everything());
        found.retain(|sample| !LEFT_OUT.iter().any(|start| sample.name.starts_with(start)));
        let mut series = self.series.lock();
        let mut count = 0;
        for sample in found {
            let key = (sample.name.clone(), sample.labels_text());
            if series.len() >= METRICS && !series.contains_key(&key) {
                continue;
            }
            series.entry(key).or_insert_with(|| Series::new(&sample, now)).add(sample.value, now);
            count += 1;
        }
        count
    }

    /// Removes metrics that were not updated for more than one interval.
    pub(crate) fn clean(&self, now: Instant) {
        self.series.lock().retain(|_, series| now.duration_since(series.updated) <= self.interval);
    }

    /// Returns the samples of the metrics that `wanted` selects by name and labels, in order.
    pub(crate) fn samples(&self, wanted: impl Fn(&str, &str) -> bool) -> Vec<(String, String, Series)> {
        let series = self.series.lock();
        let found = series.iter().filter(|((name, labels), _)| wanted(name, labels));
        found.map(|((name, labels), series)| (name.clone(), labels.clone(), series.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram;

    use super::*;

    #[test]
    fn the_newest_sample_is_the_first() {
        let (metrics, sampler) = (Metrics::default(), Sampler::new(Duration::from_secs(60)));
        let gauge = metrics.added("gauge", "A gauge", Gauge::<i64>::default());
        metrics.register("feature_x", "Left out", Gauge::<i64>::default());
        let delay = histogram::Histogram::new([1.0, 2.0]);
        metrics.register_off("delay_seconds", "Sampled although it is off", delay.clone());
        let mut now = Instant::now();
        for round in 0..30 {
            gauge.set(round);
            if round < 29 {
                delay.observe(if round == 28 { 1.5 } else { 0.5 });
            }
            assert_eq!(sampler.collect(&metrics, now), 2);
            now += Duration::from_secs(60);
        }
        let found = sampler.samples(|_, _| true);
        let names: Vec<&str> = found.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["cilium_delay_seconds", "cilium_gauge"]);
        let Values::Plain(ring) = found[1].2.values else { panic!("{found:?}") };
        assert_eq!((ring[0], ring[1], ring[KEPT - 1]), (29.0, 28.0, 6.0));
        // Percentiles cover only the observations between two samples.
        let Values::Histogram { percentiles, .. } = &found[0].2.values else { panic!("{found:?}") };
        assert_eq!(percentiles.map(|ring| [ring[0], ring[1], ring[2]])[0], [0.0, 1.5, 0.5]);
        assert_eq!([0, 1, 2, 24].map(|at| found[0].2.present(at)), [false, true, true, false]);

        sampler.clean(now);
        assert_eq!(sampler.samples(|_, _| true).len(), 2, "one interval is no reason");
        sampler.clean(now + Duration::from_secs(1));
        assert!(sampler.samples(|_, _| true).is_empty());
    }
}
