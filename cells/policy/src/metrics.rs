//! Metrics of policy, by the names of the original.

use std::sync::Arc;
use std::time::Duration;

use loader::Datapath;
use metrics::Metrics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use statedb::Table;

use crate::core::Round;
use crate::endpoint::{EndpointPolicy, Progress};
use crate::job::Shared;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ChangeLabels {
    outcome: &'static str,
    operation: &'static str,
    source: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    way: &'static str,
}

/// What is counted as it happens.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    changes: Family<ChangeLabels, Counter>,
    writes: Family<WriteLabels, Counter>,
    durations: Histogram,
}

impl Default for Numbers {
    fn default() -> Numbers {
        let buckets = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0];
        Numbers { changes: Family::default(), writes: Family::default(), durations: Histogram::new(buckets) }
    }
}

impl Numbers {
    /// An object was read, or is gone. Sources are the agent's own, a handful.
    pub(crate) fn changed(&self, operation: &'static str, source: &str, ok: bool) {
        let outcome = if ok { "success" } else { "fail" };
        let labels = ChangeLabels { outcome, operation, source: source.to_owned() };
        self.changes.get_or_create(&labels).inc();
    }

    /// A round is done.
    pub(crate) fn round(&self, round: &Round, took: Duration) {
        if round.in_place + round.swapped > 0 {
            self.durations.observe(took.as_secs_f64());
        }
        for (way, count) in [("in-place", round.in_place), ("swap", round.swapped)] {
            self.writes.get_or_create(&WriteLabels { way }).inc_by(count as u64);
        }
    }

    /// Puts everything into the registry.
    pub(crate) fn register(&self, metrics: &Metrics, state: PolicyState) {
        metrics.register("policy_change_total", "Number of policy changes by outcome", self.changes.clone());
        metrics.register(
            "policy_map_changes_total",
            "Number of changed policy maps by the way they were changed",
            self.writes.clone(),
        );
        metrics.register(
            "policy_implementation_delay_seconds",
            "Time from a change of policies, identities or endpoints to its last policy map",
            self.durations.clone(),
        );
        metrics.register_collector(state);
    }
}

/// What is read when somebody asks.
pub(crate) struct PolicyState {
    pub(crate) shared: Shared,
    pub(crate) endpoints: Table<EndpointPolicy>,
    pub(crate) datapath: Arc<dyn Datapath>,
    /// Fill level from which on maps are told of.
    pub(crate) threshold: f64,
}

impl std::fmt::Debug for PolicyState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PolicyState")
    }
}

impl Collector for PolicyState {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let (policies, revision, selectors) = {
            let state = self.shared.lock();
            let engine = state.core.engine();
            let policies: usize = engine.policies().map(|policy| policy.entries.len()).sum();
            (policies, engine.revision(), engine.selectors().len() + engine.subject_selectors().len())
        };
        let gauges = [
            ("policy", "Number of policies currently loaded", policies as u64),
            ("policy_max_revision", "Highest policy revision number in the agent", revision),
            ("policy_selector_cache_selectors", "Number of selectors in use", selectors as u64),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value as i64);
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        let snapshot = self.endpoints.snapshot();
        let rows = || self.endpoints.all(&snapshot);
        let help = "Number of endpoints labeled by policy enforcement status";
        let name = "policy_endpoint_enforcement_status";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for enforcement in ["none", "ingress", "egress", "both"] {
            let count = rows().filter(|row| row.enabled() == enforcement).count();
            ConstGauge::new(count as i64).encode(family.encode_family(&[("enforcement", enforcement)])?)?;
        }
        let capacity = self.datapath.policy_capacity().max(1) as f64;
        // A full one would hold more than it can.
        let level = |row: &EndpointPolicy| match row.progress {
            Progress::Full => 1.0,
            _ => {
                let counts = [row.ingress, row.egress];
                counts.iter().map(|rows| rows.allow + rows.deny).sum::<usize>() as f64 / capacity
            }
        };
        let highest = rows().map(|row| level(row)).fold(0.0, f64::max);
        if highest >= self.threshold && highest > 0.0 {
            let help = "Fill percentage of map, tagged by map name";
            let mut family = encoder.encode_descriptor("bpf_map_pressure", help, None, MetricType::Gauge)?;
            ConstGauge::new(highest).encode(family.encode_family(&[("map_name", "cilium_policy_v2_*")])?)?;
        }
        let help = "Number of endpoints that are denied wholly because their policy map is full";
        let name = "policy_endpoints_overflowed";
        let full = rows().filter(|row| row.progress == Progress::Full).count();
        ConstGauge::new(full as i64).encode(encoder.encode_descriptor(
            name,
            help,
            None,
            MetricType::Gauge,
        )?)?;
        Ok(())
    }
}
