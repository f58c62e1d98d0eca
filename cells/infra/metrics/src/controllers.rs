//! Jobs and reconcilers as Cilium's controllers: runs, durations, and those that fail. `GET /healthz` has the same ones.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hive::{HealthTree, Level};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use statedb::Db;

use crate::registry::Metrics;

/// Upper bounds of the buckets in seconds, as Cilium has them; also those of a reconciler's rounds.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The values of the label `status`: no failure, a failure.
const STATUSES: [&str; 2] = ["success", "failure"];

/// Durations of runs by bucket; the last bucket has no bound.
#[derive(Clone, Copy, Debug, Default)]
struct Durations {
    buckets: [u64; BUCKETS.len() + 1],
    sum: Duration,
}

impl Durations {
    fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Adds the rounds of a reconciler, whose buckets are the same.
    fn add(&mut self, rounds: &reconciler::Histogram) {
        for (bucket, (_, count)) in self.buckets.iter_mut().zip(rounds.buckets()) {
            *bucket += count;
        }
        self.sum += rounds.sum();
    }
}

/// Counts of runs with one status.
#[derive(Debug, Default)]
struct Counts {
    buckets: [AtomicU64; BUCKETS.len() + 1],
    nanos: AtomicU64,
}

/// The runs of jobs.
#[derive(Debug, Default)]
pub(crate) struct ControllerRuns([Counts; STATUSES.len()]);

impl ControllerRuns {
    /// Counts a run.
    pub(crate) fn count(&self, duration: Duration, failed: bool) {
        let counts = &self.0[usize::from(failed)];
        let seconds = duration.as_secs_f64();
        let bucket = BUCKETS.iter().position(|bound| seconds <= *bound).unwrap_or(BUCKETS.len());
        counts.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        counts.nanos.fetch_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn durations(&self) -> [Durations; STATUSES.len()] {
        self.0.each_ref().map(|counts| Durations {
            buckets: counts.buckets.each_ref().map(|count| count.load(Ordering::Relaxed)),
            sum: Duration::from_nanos(counts.nanos.load(Ordering::Relaxed)),
        })
    }
}

/// Registers the metrics of controllers; returns the counters of jobs. Rounds of reconcilers are those of `db`.
pub(crate) fn register(
    metrics: &Metrics,
    health: Arc<HealthTree>,
    db: Option<Arc<Db>>,
) -> Arc<ControllerRuns> {
    let runs = Arc::<ControllerRuns>::default();
    metrics.register_collector(Controllers { health, db, runs: runs.clone() });
    runs
}

struct Controllers {
    health: Arc<HealthTree>,
    db: Option<Arc<Db>>,
    runs: Arc<ControllerRuns>,
}

impl fmt::Debug for Controllers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Controllers")
    }
}

impl Controllers {
    /// Returns the durations of all runs and rounds, by status.
    fn durations(&self) -> [Durations; STATUSES.len()] {
        let mut all = self.runs.durations();
        for reconciler in self.db.iter().flat_map(|db| reconciler::Metrics::all(db)) {
            all[0].add(&reconciler.rounds_done);
            all[1].add(&reconciler.rounds_failed);
        }
        all
    }

    /// Returns the number of jobs whose last report is a failure.
    fn failing(&self) -> usize {
        let reports = self.health.snapshot();
        reports.iter().filter(|report| report.level == Level::Degraded && report.job().is_some()).count()
    }
}

impl Collector for Controllers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Controllers of which the last run has failed";
        let family = encoder.encode_descriptor("controllers_failing", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(self.failing()).unwrap_or(i64::MAX)).encode(family)?;
        let durations = self.durations();
        let by_status = || STATUSES.into_iter().zip(&durations).filter(|(_, runs)| runs.count() > 0);
        let help = "ControllerRuns of controllers by status";
        let mut family = encoder.encode_descriptor("controllers_runs", help, None, MetricType::Counter)?;
        for (status, runs) in by_status() {
            ConstCounter::new(runs.count()).encode(family.encode_family(&[("status", status)])?)?;
        }
        let (name, help) = (
            "controllers_runs_duration_seconds",
            "Durations of the runs of controllers by status, in seconds",
        );
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (status, runs) in by_status() {
            let bounds = BUCKETS.into_iter().chain([f64::INFINITY]);
            let buckets: Vec<_> = bounds.zip(runs.buckets).collect();
            let labels = [("status", status)];
            let mut metric = family.encode_family(&labels)?;
            metric.encode_histogram::<NoLabelSet>(runs.sum.as_secs_f64(), runs.count(), &buckets, None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_by_status_and_bucket() {
        let metrics = Metrics::default();
        let health = hive::Hive::builder(Vec::new()).build().unwrap().health().clone();
        let runs = register(&metrics, health, None);
        let none = metrics.text();
        assert!(none.contains("cilium_controllers_failing 0\n") && !none.contains("status="), "{none}");
        for (millis, failed) in [(5, false), (6, false), (20_000, false), (250, true)] {
            runs.count(Duration::from_millis(millis), failed);
        }
        let text = metrics.text();
        let name = "cilium_controllers_runs_duration_seconds";
        for line in [
            "cilium_controllers_runs_total{status=\"success\"} 3".to_owned(),
            "cilium_controllers_runs_total{status=\"failure\"} 1".to_owned(),
            format!("{name}_bucket{{le=\"0.005\",status=\"success\"}} 1"),
            format!("{name}_bucket{{le=\"0.01\",status=\"success\"}} 2"),
            format!("{name}_bucket{{le=\"10.0\",status=\"success\"}} 2"),
            format!("{name}_bucket{{le=\"+Inf\",status=\"success\"}} 3"),
            format!("{name}_sum{{status=\"success\"}} 20.011"),
            format!("{name}_bucket{{le=\"0.1\",status=\"failure\"}} 0"),
            format!("{name}_count{{status=\"failure\"}} 1"),
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} in\n{text}");
        }
    }
}
