//! Metrics of endpoints, by the names of Cilium.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use metrics::Metrics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use statedb::Table;

use crate::model::endpoint::Endpoint;
use crate::model::state::State;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Regeneration {
    error: &'static str,
    outcome: &'static str,
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Phase {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseOutcome {
    outcome: &'static str,
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Scope {
    scope: &'static str,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventSource {
    source: &'static str,
}

/// Upper bounds of the buckets of regeneration times, in seconds; equal to Cilium's.
const BUCKETS: [f64; 8] = [0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0];

/// Times of regenerations by step.
#[derive(Debug, Clone)]
struct Times(Family<Scope, Histogram, fn() -> Histogram>);

impl Default for Times {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(BUCKETS)))
    }
}

/// Counters of events.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    regenerations: Family<Regeneration, Counter>,
    times: Times,
    event_lag: Family<EventSource, Gauge>,
    restored: Family<PhaseOutcome, Gauge>,
    durations: Family<Phase, Gauge<f64, AtomicU64>>,
}

impl Counts {
    /// Counts a regeneration. Reasons are constants of the agent, so the label has few values.
    pub(crate) fn regeneration(&self, reason: &str, ok: bool) {
        let (outcome, error) = if ok { ("success", "") } else { ("fail", "datapath") };
        self.regenerations.get_or_create(&Regeneration { error, outcome, reason: reason.to_owned() }).inc();
    }

    /// Counts the time of a step of a regeneration, or of all of it.
    pub(crate) fn took(&self, scope: &'static str, ok: bool, time: Duration) {
        let status = if ok { "success" } else { "failure" };
        self.times.0.get_or_create(&Scope { scope, status }).observe(time.as_secs_f64());
    }

    /// Sets the time from the request for an endpoint until its pod's object was there: in whole seconds, as in Cilium.
    pub(crate) fn event_lag(&self, lag: Duration) {
        let seconds = lag.as_secs_f64().round() as i64;
        self.event_lag.get_or_create(&EventSource { source: "k8s" }).set(seconds);
    }

    /// Returns the lag that was set last.
    #[cfg(test)]
    pub(crate) fn last_event_lag(&self) -> i64 {
        self.event_lag.get_or_create(&EventSource { source: "k8s" }).get()
    }

    /// Sets the duration of a phase of the restore, and the numbers of endpoints that it completed and that failed.
    pub(crate) fn phase(
        &self,
        phase: &'static str,
        took: Duration,
        ok: usize,
        failed: usize,
        skipped: usize,
    ) {
        let number = |count| i64::try_from(count).unwrap_or(i64::MAX);
        for (outcome, count) in
            [("total", ok + failed + skipped), ("successful", ok), ("failed", failed), ("skipped", skipped)]
        {
            self.restored.get_or_create(&PhaseOutcome { outcome, phase }).set(number(count));
        }
        self.durations.get_or_create(&Phase { phase }).set(took.as_secs_f64());
    }

    pub(crate) fn register(&self, metrics: &Metrics, table: Table<Endpoint>) {
        metrics.register(
            "endpoint_regenerations_total",
            "Count of all endpoint regenerations that have completed, tagged by outcome",
            self.regenerations.clone(),
        );
        metrics.register(
            "endpoint_regeneration_time_stats_seconds",
            "Endpoint regeneration time stats labeled by the scope",
            self.times.0.clone(),
        );
        metrics.register(
            "endpoint_restoration_endpoints",
            "Number of restored endpoints labeled by phase and outcome",
            self.restored.clone(),
        );
        metrics.register(
            "endpoint_restoration_duration_seconds",
            "Duration of endpoint restoration phases in seconds",
            self.durations.clone(),
        );
        metrics.register_off(
            "k8s_event_lag_seconds",
            "Time between the request for an endpoint and the event of its pod from the API server, of the last endpoint",
            self.event_lag.clone(),
        );
        metrics.register_collector(States(table));
    }
}

/// The number of endpoints by state, read from the table at a scrape.
struct States(Table<Endpoint>);

impl std::fmt::Debug for States {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("States")
    }
}

impl Collector for States {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let snapshot = self.0.snapshot();
        let count = |state| self.0.all(&snapshot).filter(|endpoint| endpoint.state == state).count() as i64;
        let help = "Number of endpoints managed by this agent";
        let all = ConstGauge::new(self.0.len(&snapshot) as i64);
        all.encode(encoder.encode_descriptor("endpoint", help, None, MetricType::Gauge)?)?;
        let help = "Count of all endpoints, tagged by different endpoint states";
        let mut family = encoder.encode_descriptor("endpoint_state", help, None, MetricType::Gauge)?;
        for state in State::ALL {
            let labels = [("endpoint_state", state.name())];
            ConstGauge::new(count(state)).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn metrics_have_ciliums_names_and_labels() {
        let metrics = Metrics::default();
        let table = statedb::Db::new().table::<Endpoint>().unwrap();
        let counts = Counts::default();
        counts.register(&metrics, table.reader());
        counts.regeneration("LabelsUpdate", true);
        counts.regeneration("LabelsUpdate", false);
        counts.took("total", true, Duration::from_millis(3));
        counts.took("total", false, Duration::from_secs(10));
        counts.phase("restoration", Duration::from_millis(2), 3, 1, 0);
        let record = crate::Record { id: 7, ..crate::Record::default() };
        table.transact(|txn| txn.insert(Endpoint::created(record, SystemTime::UNIX_EPOCH)));
        counts.event_lag(Duration::from_millis(1600));
        assert!(!metrics.text().contains("k8s_event_lag"), "off by default, as in Cilium");
        metrics.select(metrics::Selection::parse(["+cilium_k8s_event_lag_seconds"]).0);
        let text = metrics.text();
        for line in [
            "cilium_k8s_event_lag_seconds{source=\"k8s\"} 2",
            "cilium_endpoint 1",
            "cilium_endpoint_state{endpoint_state=\"waiting-for-identity\"} 1",
            "cilium_endpoint_state{endpoint_state=\"ready\"} 0",
            "cilium_endpoint_regenerations_total{error=\"\",outcome=\"success\",reason=\"LabelsUpdate\"} 1",
            "cilium_endpoint_regenerations_total{error=\"datapath\",outcome=\"fail\",reason=\"LabelsUpdate\"} 1",
            "cilium_endpoint_regeneration_time_stats_seconds_bucket{le=\"0.01\",scope=\"total\",status=\"success\"} 1",
            "cilium_endpoint_regeneration_time_stats_seconds_sum{scope=\"total\",status=\"failure\"} 10.0",
            "cilium_endpoint_restoration_endpoints{outcome=\"total\",phase=\"restoration\"} 4",
            "cilium_endpoint_restoration_duration_seconds{phase=\"restoration\"} 0.002",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }
}
