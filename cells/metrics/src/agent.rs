//! Metrics of the framework itself: version, start, jobs, health.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use hive::{Event, HealthTree, Level};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::registry::Metrics;

/// The version of Cilium whose interfaces this agent has.
pub const VERSION: &str = "1.20.0";

/// The platform of this build, as Go writes it: `linux/amd64`.
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

/// Follows the events of the hive.
pub(crate) struct Framework {
    start: Seconds,
    runs: Family<JobLabels, Counter>,
    failures: Family<JobLabels, Counter>,
    last_run: Family<JobLabels, Seconds>,
}

impl Framework {
    pub(crate) fn new(metrics: &Metrics, health: Arc<HealthTree>) -> Self {
        let version = Family::<VersionLabels, Gauge>::default();
        let labels = VersionLabels { version: VERSION, revision: "", arch: platform() };
        version.get_or_create(&labels).set(0);
        metrics.register("version", "Cilium version", version);
        metrics.register_collector(HealthLevels(health));

        let start = "Duration of the start, in seconds";
        let last_run = "Duration of a background job, in seconds";
        let failures = "Failed runs of background jobs";
        Self {
            start: metrics.added("hive_start_duration", start, Gauge::default()),
            runs: metrics.added("hive_jobs_runs_total", "Ended background jobs", Family::default()),
            failures: metrics.added("hive_jobs_runs_failed", failures, Family::default()),
            last_run: metrics.added(
                "hive_jobs_oneshot_last_run_duration_seconds",
                last_run,
                Family::default(),
            ),
        }
    }

    /// Counts until the hive has gone.
    pub(crate) async fn follow(self, mut events: Receiver<Event>) {
        loop {
            match events.recv().await {
                Ok(event) => self.count(&event),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    }

    fn count(&self, event: &Event) {
        match event {
            Event::Started { duration } => {
                self.start.set(duration.as_secs_f64());
            }
            Event::JobEnded { job, module, duration } => {
                let labels = labels(job, module);
                self.runs.get_or_create(&labels).inc();
                self.last_run.get_or_create(&labels).set(duration.as_secs_f64());
            }
            Event::JobFailed { job, module, .. } => {
                self.failures.get_or_create(&labels(job, module)).inc();
            }
            _ => {}
        }
    }
}

/// Modules go by the last part of their path. Jobs are named by the code, numbers in names are left out: what is
/// added at run time for each of something shares a name.
fn labels(job: &str, module: &str) -> JobLabels {
    let job_name = job.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('-');
    JobLabels { job_name: job_name.to_owned(), module_id: module.rsplit('.').next().unwrap_or("").to_owned() }
}

/// How many reporters are well, degraded, stopped.
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

    #[tokio::test]
    async fn events_become_metrics() {
        let metrics = Metrics::default();
        let hive = hive::Hive::builder(Vec::new()).build().unwrap();
        let framework = Framework::new(&metrics, hive.health().clone());
        let (job, module) = ("server".into(), "agent.api".into());
        framework.count(&Event::Started { duration: Duration::from_millis(250) });
        framework.count(&Event::JobEnded { job, module, duration: Duration::from_secs(2) });
        let text = metrics.text();
        for line in [
            "cilium_hive_start_duration 0.25",
            "cilium_hive_jobs_runs_total{job_name=\"server\",module_id=\"api\"} 1",
            "cilium_hive_jobs_oneshot_last_run_duration_seconds{job_name=\"server\",module_id=\"api\"} 2.0",
            "cilium_version{version=\"1.20.0\",revision=\"\",arch=\"linux/",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
