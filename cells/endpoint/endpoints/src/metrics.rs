//! Metrics of endpoints, by the names of Cilium.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use metrics::Metrics;
use policy::{EndpointPolicy, RealizationState};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use statedb::Table;

use crate::model::endpoint::Endpoint;
use crate::model::log::{Code, Component};
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

    pub(crate) fn register(
        &self,
        metrics: &Metrics,
        endpoints: Table<Endpoint>,
        policies: Table<EndpointPolicy>,
    ) {
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
        metrics.register_collector(States { endpoints, policies });
    }
}

/// The number of endpoints by state and by the status of their parts, read from the tables at a scrape.
struct States {
    endpoints: Table<Endpoint>,
    policies: Table<EndpointPolicy>,
}

impl std::fmt::Debug for States {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("States")
    }
}

impl Collector for States {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let snapshot = self.endpoints.snapshot();
        let endpoints = || self.endpoints.all(&snapshot);
        let count = |state| endpoints().filter(|endpoint| endpoint.state == state).count() as i64;
        let help = "Number of endpoints managed by this agent";
        let all = ConstGauge::new(self.endpoints.len(&snapshot) as i64);
        all.encode(encoder.encode_descriptor("endpoint", help, None, MetricType::Gauge)?)?;
        let help = "Count of all endpoints, tagged by different endpoint states";
        let mut family = encoder.encode_descriptor("endpoint_state", help, None, MetricType::Gauge)?;
        for state in State::ALL {
            let labels = [("endpoint_state", state.name())];
            ConstGauge::new(count(state)).encode(family.encode_family(&labels)?)?;
        }
        let code = |endpoint: &Endpoint, component| match component {
            // A policy changes without a regeneration, so the log does not have its status.
            Component::Policy => {
                let row = self.policies.get(&snapshot, EndpointPolicy::by_endpoint(endpoint.record.id))?;
                policy_code(row)
            }
            Component::Bpf | Component::Other => endpoint.log.last_code(component),
        };
        let help = "Number of endpoints by the status of their components";
        let name = "endpoint_component_status";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for component in [Component::Bpf, Component::Other, Component::Policy] {
            for status in [Code::Failure, Code::Ok, Code::Warning] {
                let count = endpoints().filter(|endpoint| code(endpoint, component) == Some(status)).count();
                let labels = [("status", status.name()), ("type", component.name())];
                ConstGauge::new(count as i64).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Returns the status of an endpoint's policy; `None` before its first one is in the kernel.
fn policy_code(row: &EndpointPolicy) -> Option<Code> {
    match row.state {
        RealizationState::Realized => Some(Code::Ok),
        // The kernel has the previous one until the next is written.
        RealizationState::Pending => (row.realized > 0).then_some(Code::Ok),
        RealizationState::Full | RealizationState::Conflict | RealizationState::Failed => Some(Code::Failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    use policy::Subject;
    use policy::testing::FakePolicies;

    #[test]
    fn metrics_have_ciliums_names_and_labels() {
        let metrics = Metrics::default();
        let db = statedb::Db::new();
        let table = db.table::<Endpoint>().unwrap();
        let counts = Counts::default();
        let fake = FakePolicies::new(&db);
        counts.register(&metrics, table.reader(), fake.policies().table());
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
    #[test]
    fn components_of_endpoints_are_counted_by_their_last_status() {
        let (metrics, db) = (Metrics::default(), statedb::Db::new());
        let table = db.table::<Endpoint>().unwrap();
        let fake = FakePolicies::new(&db);
        Counts::default().register(&metrics, table.reader(), fake.policies().table());
        let now = SystemTime::UNIX_EPOCH;
        let counts = || {
            let text = metrics.text();
            let count = |component: &str, status: &str| -> u32 {
                let series =
                    format!("cilium_endpoint_component_status{{status=\"{status}\",type=\"{component}\"}} ");
                let found = text.lines().find_map(|line| line.strip_prefix(&series));
                found.unwrap_or_else(|| panic!("{series}\n{text}")).parse().unwrap()
            };
            ["BPF", "Other", "Policy"]
                .map(|component| ["OK", "Warning", "Failure"].map(|status| count(component, status)))
        };
        let upsert = |endpoint: &Endpoint| drop(table.transact(|txn| txn.insert(endpoint.clone())));
        let endpoint = |id| Endpoint::created(crate::Record { id, ..crate::Record::default() }, now);
        let (first, second) = (endpoint(7), endpoint(8));
        upsert(&first);
        upsert(&second);
        assert_eq!(counts(), [[0; 3], [2, 0, 0], [0; 3]], "nothing is in the kernel");
        for id in [7, 8] {
            let labels = labels::LabelArray::default();
            fake.policies().enforce(Subject {
                endpoint: id,
                identity: 300,
                labels,
                named_ports: Default::default(),
            });
            fake.realize(id);
        }
        let ready = |endpoint: &Endpoint| {
            endpoint.identified("", now).triggered("LabelsUpdate", "", now).regenerated(now)
        };
        let (first, second) = (ready(&first), ready(&second));
        upsert(&first);
        upsert(&second);
        assert_eq!(counts(), [[2, 0, 0]; 3]);
        // Not a transition that there is.
        let lost = first.enter(State::Regenerating, "", now);
        upsert(&lost);
        upsert(&second.triggered("LabelsUpdate", "", now).failed("no memory", now));
        fake.fail(8, "no memory");
        assert_eq!(counts(), [[1, 0, 1], [1, 1, 0], [1, 0, 1]]);
        upsert(&ready(&lost));
        upsert(&ready(&second));
        fake.realize(8);
        assert_eq!(counts(), [[2, 0, 0]; 3], "faults that are over are not counted");
    }
}
