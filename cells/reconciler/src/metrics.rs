//! The counters of a reconciler, for exporters.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Plain counters of one reconciler. An exporter finds them with [`Metrics::all`] and chooses the names of its metrics;
/// the words behind the fields are suggestions.
#[derive(Debug)]
pub struct Metrics {
    name: Arc<str>,
    module: OnceLock<String>,
    /// Objects reconciled, successfully or not.
    pub objects: Counter,
    /// `count`: operations, of one object or of a batch.
    pub operations: Counter,
    /// `duration_seconds{op="update"}`: of single operations, or of batches, while there is a [`Listener`].
    pub updates: Histogram,
    /// `duration_seconds{op="delete"}`, as above.
    pub deletes: Histogram,
    /// `errors_total`: failed operations.
    pub errors: Counter,
    /// `errors_current`: objects that fail now.
    pub errors_current: Counter,
    /// `prune_duration_seconds`, whose count is `prune_count`.
    pub prunes: Histogram,
    /// `prune_errors_total`.
    pub prune_errors: Counter,
    /// Rounds that reconciled objects.
    pub rounds: Counter,
    /// Durations of the rounds in which no operation failed.
    pub rounds_done: Histogram,
    /// Durations of the rounds in which an operation failed.
    pub rounds_failed: Histogram,
}

/// Upper bounds of an operation's durations in nanoseconds, from half a millisecond to a second.
const OPERATION: Bounds =
    in_micros([500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000]);
/// Upper bounds of the durations of prunes and rounds, from 5 ms to 10 s.
const ROUND: Bounds = in_micros([
    5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
]);

const BOUNDS: usize = 11;
type Bounds = [u64; BOUNDS];

const fn in_micros(mut bounds: Bounds) -> Bounds {
    let mut at = 0;
    while at < BOUNDS {
        bounds[at] *= 1000;
        at += 1;
    }
    bounds
}

impl Metrics {
    pub(crate) fn new(name: Arc<str>) -> Self {
        Metrics {
            name,
            module: OnceLock::new(),
            objects: Counter::default(),
            operations: Counter::default(),
            updates: Histogram::new(OPERATION),
            deletes: Histogram::new(OPERATION),
            errors: Counter::default(),
            errors_current: Counter::default(),
            prunes: Histogram::new(ROUND),
            prune_errors: Counter::default(),
            rounds: Counter::default(),
            rounds_done: Histogram::new(ROUND),
            rounds_failed: Histogram::new(ROUND),
        }
    }

    /// Returns the metrics of all live reconcilers of a database's tables, in the order of their creation.
    pub fn all(db: &statedb::Db) -> Vec<Arc<Metrics>> {
        db.attached()
    }

    /// Returns the reconciler's name, empty if it has none.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of the reconciler's module, empty without one.
    pub fn module(&self) -> &str {
        self.module.get().map_or("", String::as_str)
    }

    /// Counts a round that reconciled objects.
    pub(crate) fn round(&self, duration: Duration, failed: bool) {
        self.rounds.add(1);
        let durations = if failed { &self.rounds_failed } else { &self.rounds_done };
        durations.observe(duration);
    }

    #[cfg(feature = "hive")]
    pub(crate) fn runs_in(&self, module: String) {
        // Ignored: a reconciler runs once, so the module is set once.
        let _ = self.module.set(module);
    }
}

/// A consumer of the durations of operations. Durations are measured only while a listener is enabled: reading the
/// clock for each operation costs up to a tenth of a reconciler's other work.
#[derive(Debug)]
pub struct Listener(Arc<AtomicBool>);

impl Listener {
    /// Attaches a listener to a database: durations of operations on its tables are measured while `wanted` is set and
    /// the listener exists.
    pub fn attach(db: &statedb::Db, wanted: Arc<AtomicBool>) -> Arc<Self> {
        let listener = Arc::new(Listener(wanted));
        db.attach(&listener);
        listener
    }

    /// Whether there is a listener now.
    pub(crate) fn listens(db: &statedb::Db) -> bool {
        db.attached::<Listener>().iter().any(|listener| listener.0.load(Ordering::Relaxed))
    }
}

/// A counter or gauge.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, n: usize) {
        self.0.store(n as u64, Ordering::Relaxed);
    }

    /// Returns the current value.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A histogram of durations with fixed bounds.
#[derive(Debug)]
pub struct Histogram {
    bounds: Bounds,
    counts: [AtomicU64; BOUNDS + 1],
    nanos: AtomicU64,
}

impl Histogram {
    fn new(bounds: Bounds) -> Self {
        Histogram { bounds, counts: Default::default(), nanos: AtomicU64::new(0) }
    }

    /// Returns the count of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Returns the sum of the durations.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    /// Returns the upper bound of each bucket in seconds and the count of durations in it; the last bound is infinity.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().map(|nanos| *nanos as f64 / 1e9).chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Returns a tally, which adds its durations to the histogram all at once.
    pub(crate) fn tally(&self) -> Tally<'_> {
        Tally { histogram: self, counts: [0; BOUNDS + 1], nanos: 0 }
    }

    pub(crate) fn observe(&self, time: Duration) {
        self.tally().add(time);
    }
}

/// Durations that are added to the histogram when the tally is dropped.
pub(crate) struct Tally<'h> {
    histogram: &'h Histogram,
    counts: [u64; BOUNDS + 1],
    nanos: u64,
}

impl Tally<'_> {
    pub(crate) fn add(&mut self, time: Duration) {
        let nanos = time.as_nanos() as u64;
        let bucket = self.histogram.bounds.iter().position(|bound| nanos <= *bound).unwrap_or(BOUNDS);
        self.counts[bucket] += 1;
        self.nanos += nanos;
    }
}

impl Drop for Tally<'_> {
    fn drop(&mut self) {
        for (all, new) in self.histogram.counts.iter().zip(self.counts) {
            if new > 0 {
                all.fetch_add(new, Ordering::Relaxed);
            }
        }
        self.histogram.nanos.fetch_add(self.nanos, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_below_their_bounds() {
        let metrics = Metrics::new("a".into());
        let ms = Duration::from_millis;
        for time in [1, 2, 1000, 3000] {
            metrics.updates.observe(ms(time));
        }
        let buckets: Vec<_> = metrics.updates.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(buckets, [(0.001, 1), (0.0025, 1), (1.0, 1), (f64::INFINITY, 1)]);
        assert_eq!((metrics.updates.count(), metrics.updates.sum()), (4, ms(4003)));
        assert_eq!(metrics.prunes.buckets().nth(10), Some((10.0, 0)));
    }
}
