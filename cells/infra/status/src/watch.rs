//! Reports of the watchdog in health, log and status.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use hive::Health;
use hive::job::{Jobs, Stuck, Watchdog};

use crate::collector::Collector;

/// Samples the watchdog and reports stuck jobs.
pub(crate) struct Watch {
    watchdog: Watchdog,
    collector: Arc<Collector>,
    /// Scope with a child for each stuck job.
    health: Health,
    /// Jobs that are reported as stuck.
    named: BTreeSet<String>,
}

impl Watch {
    pub(crate) fn new(
        jobs: Arc<Jobs>,
        deadline: Duration,
        collector: Arc<Collector>,
        health: Health,
    ) -> Self {
        Self { watchdog: Watchdog::new(jobs, deadline), collector, health, named: BTreeSet::new() }
    }

    pub(crate) fn sample(&mut self) {
        let stuck = self.watchdog.sample(Instant::now());
        self.collector.observed(&stuck, SystemTime::now());
        self.report(&stuck);
    }

    fn report(&mut self, stuck: &[Stuck]) {
        for stuck in stuck {
            if self.named.insert(stuck.job.clone()) {
                tracing::error!(job = stuck.job, reason = %stuck, "A job makes no progress");
                self.health.child(&stuck.job).degraded("No progress", stuck);
            }
        }
        self.named.retain(|job| {
            let still = stuck.iter().any(|stuck| stuck.job == *job);
            if !still {
                tracing::info!(job, "The job makes progress again");
                self.health.child(job).close();
            }
            still
        });
    }
}
