//! Metrics of the framework itself: version, start, jobs, health.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use hive::{Event, HealthTree, JobKind, Level};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;

use crate::controllers::ControllerRuns;
use crate::registry::Metrics;

/// The version of Cilium whose interfaces this agent provides.
pub const VERSION: &str = "1.20.0";

/// Returns the platform of this build in Go's form: `linux/amd64`.
pub fn platform() -> String {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("linux/{arch}")
}

type Seconds = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VersionLabels {
    version: &'static str,
    revision: &'static str,
    arch: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobLabels {
    job_name: String,
    module_id: String,
}

/// Upper bounds of the buckets of run times, in seconds; equal to Cilium's.
const BUCKETS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];

type Runs = Family<JobLabels, Histogram, fn() -> Histogram>;

/// Counters of the hive's life-cycle events.
pub(crate) struct Framework {
    populate: Seconds,
    start: Seconds,
    runs: Family<JobLabels, Counter>,
    failures: Family<JobLabels, Counter>,
    /// By kind: one-shot, timer, observer.
    last_run: [Family<JobLabels, Seconds>; 3],
    /// Of timers and observers.
    run: [Runs; 2],
    /// An agent's.
    controllers: Option<Arc<ControllerRuns>>,
}

impl Framework {
    /// Registers the metrics; runs of jobs are counted as those of `controllers`, too.
    pub(crate) fn new(
        metrics: &Metrics,
        health: Arc<HealthTree>,
        controllers: Option<Arc<ControllerRuns>>,
    ) -> Self {
        let version = Family::<VersionLabels, Gauge>::default();
        let labels = VersionLabels { version: VERSION, revision: "", arch: platform() };
        version.get_or_create(&labels).set(0);
        metrics.register("version", "Cilium version", version);
        metrics.register_collector(HealthLevels(health));

        let bucketed = || Runs::new_with_constructor(|| Histogram::new(BUCKETS));
        let kinds = ["oneshot", "timer", "observer"];
        let last_run = kinds.map(|kind| {
            let name = format!("hive_jobs_{kind}_last_run_duration_seconds");
            let help = "Duration of the last run of a background job, in seconds";
            metrics.added(&name, help, Family::default())
        });
        let run = [kinds[1], kinds[2]].map(|kind| {
            let name = format!("hive_jobs_{kind}_run_duration_seconds");
            metrics.added(&name, "Durations of the runs of a background job, in seconds", bucketed())
        });
        let (populate, start) = ("Duration of construction, in seconds", "Duration of the start, in seconds");
        let failures = "Failed runs of background jobs";
        Self {
            populate: metrics.added("hive_populate_duration", populate, Gauge::default()),
            start: metrics.added("hive_start_duration", start, Gauge::default()),
            runs: metrics.added("hive_jobs_runs_total", "Runs of background jobs", Family::default()),
            failures: metrics.added("hive_jobs_runs_failed", failures, Family::default()),
            last_run,
            run,
            controllers,
        }
    }

    pub(crate) fn count(&self, event: &Event) {
        match event {
            Event::Populated { duration, .. } => {
                self.populate.set(duration.as_secs_f64());
            }
            Event::Started { duration, .. } => {
                self.start.set(duration.as_secs_f64());
            }
            Event::JobRan { kind, job, module, duration, failed, .. } => {
                let (labels, seconds) = (labels(job, module), duration.as_secs_f64());
                self.controllers.iter().for_each(|runs| runs.count(*duration, *failed));
                self.runs.get_or_create(&labels).inc();
                if *failed {
                    self.failures.get_or_create(&labels).inc();
                }
                let (last, run) = match kind {
                    JobKind::OneShot => (0, None),
                    JobKind::Timer => (1, Some(0)),
                    JobKind::Observer => (2, Some(1)),
                };
                self.last_run[last].get_or_create(&labels).set(seconds);
                run.iter().for_each(|run| self.run[*run].get_or_create(&labels).observe(seconds));
            }
            _ => {}
        }
    }
}

/// Returns the labels of a job: the last segment of the module's path, and the job's name without a trailing number, so
/// that jobs added at run time for each object share one label.
fn labels(job: &str, module: &str) -> JobLabels {
    let job_name = job.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('-');
    JobLabels { job_name: job_name.to_owned(), module_id: module.rsplit('.').next().unwrap_or("").to_owned() }
}

/// The number of reporters by level.
#[derive(Clone)]
struct HealthLevels(Arc<HealthTree>);

impl std::fmt::Debug for HealthLevels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HealthLevels")
    }
}

impl Collector for HealthLevels {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let all = self.0.snapshot();
        let help = "Reporters of health by level";
        let mut family = encoder.encode_descriptor("hive_status", help, None, MetricType::Gauge)?;
        for (level, status) in [(Level::Ok, "ok"), (Level::Degraded, "degraded"), (Level::Stopped, "stopped")]
        {
            let count = all.iter().filter(|report| report.level == level).count();
            if count > 0 {
                ConstGauge::new(count as i64).encode(family.encode_family(&[("status", status)])?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hive::prelude::*;

    use super::*;

    #[test]
    fn jobs_are_labelled_without_numbers() {
        let label = |job, module| {
            let labels = labels(job, module);
            format!("{} {}", labels.job_name, labels.module_id)
        };
        assert_eq!(label("server", "agent.infra.api-server"), "server api-server");
        assert_eq!(label("regeneration-17", "endpoints"), "regeneration endpoints");
    }

    /// A hive with jobs of each kind, in virtual time: each takes two milliseconds.
    #[tokio::test(start_paused = true)]
    async fn events_become_metrics() {
        async fn work(result: anyhow::Result<()>) -> anyhow::Result<()> {
            tokio::time::sleep(Duration::from_millis(2)).await;
            result
        }
        async fn start(jobs: JobGroup, lifecycle: Lifecycle) {
            tokio::time::sleep(Duration::from_millis(125)).await;
            let sleep = Duration::from_millis(125);
            lifecycle
                .hook("slow")
                .on_start(move |_| async move {
                    tokio::time::sleep(sleep).await;
                    Ok(())
                })
                .add();
            jobs.one_shot("server", |_| work(Ok(()))).add();
            let failed = || Err(anyhow::Error::msg("no garbage"));
            jobs.timer("gc", Duration::from_secs(60), move |_| work(failed())).immediate().add();
            jobs.observer("watch-17", futures::stream::iter([1]), |_, _| work(Ok(()))).add();
        }
        let metrics = Metrics::default();
        let tree = hive::Hive::builder(Vec::new()).build().unwrap().health().clone();
        let framework = Framework::new(&metrics, tree, None);
        let mut hive = TestHive::new([module("api", "Jobs of each kind", [invoke(start)])])
            .with(|builder| builder.on_event(move |event| framework.count(event)));
        hive.start().await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        hive.stop().await;
        let text = metrics.text();
        for line in [
            "cilium_hive_start_duration 0.25",
            "cilium_hive_populate_duration 0.125",
            "cilium_hive_jobs_runs_total{job_name=\"server\",module_id=\"api\"} 1",
            "cilium_hive_jobs_oneshot_last_run_duration_seconds{job_name=\"server\",module_id=\"api\"} 0.002",
            "cilium_hive_jobs_runs_failed",
            "cilium_hive_jobs_timer_last_run_duration_seconds{job_name=\"gc\",module_id=\"api\"} 0.002",
            "cilium_hive_jobs_timer_run_duration_seconds_bucket{le=\"0.0025\",job_name=\"gc\",module_id=\"api\"} 1",
            "cilium_hive_jobs_observer_run_duration_seconds_count{job_name=\"watch\",module_id=\"api\"} 1",
            "cilium_version{version=\"1.20.0\",revision=\"\",arch=\"linux/",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
