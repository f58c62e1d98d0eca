//! Counters of a reconciler, for whoever exports them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Plain counters, read by the metrics cell under Cilium's names `cilium_reconciler_*`.
#[derive(Debug, Default)]
pub struct Metrics {
    /// `count`: objects reconciled, successfully or not.
    pub count: Counter,
    /// `errors_total`: failed operations.
    pub errors: Counter,
    /// `errors_current`: objects that fail now.
    pub errors_current: Counter,
    /// `duration_seconds{op="update"}`: the sum.
    pub update_time: Counter,
    /// `duration_seconds{op="delete"}`: the sum.
    pub delete_time: Counter,
    /// `prune_count`.
    pub prunes: Counter,
    /// `prune_errors_total`.
    pub prune_errors: Counter,
    /// `prune_duration_seconds`: the sum.
    pub prune_time: Counter,
    /// Rounds that had something to do.
    pub rounds: Counter,
}

/// A number, or a sum of durations in nanoseconds.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, n: usize) {
        self.0.store(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_time(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The number.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The sum of durations.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.value())
    }
}
