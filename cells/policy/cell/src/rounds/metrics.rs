//! Metrics of policy, with Cilium's names.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use datapath_abi::ep_flag;
use datapath_api::Datapath;
use hive::ConfigWatch;
use metrics::Metrics;
use policy_engine::{Engine, SelectorClass, SelectorClasses};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use statedb::Table;

use crate::computation::core::MapWrites;
use crate::computation::repository::STATIC_CNP_PATH;
use crate::config::PolicyConfig;
use crate::model::endpoint::{EndpointPolicy, RealizationState};
use crate::model::selectors::PeerSelector;
use crate::rounds::features::FeatureCounters;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ChangeLabels {
    operation: &'static str,
    outcome: &'static str,
    source: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    way: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DelayLabels {
    source: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CacheLabels {
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    operation: &'static str,
    scope: &'static str,
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ScopeLabels {
    scope: &'static str,
}

/// Updates of identities are for all endpoints.
const GLOBAL: ScopeLabels = ScopeLabels { scope: "global" };

/// Selectors of peers; Cilium does not count those of subjects.
const PEERS: CacheLabels = CacheLabels { r#type: "peer" };

/// Buckets of delays, as in Cilium.
const SECONDS: [f64; 8] = [1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0];

/// Buckets of operations on selectors, as in Cilium.
const OPERATION_SECONDS: [f64; 8] = [0.0005, 0.001, 0.005, 0.025, 0.05, 0.1, 0.2, 0.4];

/// An operation on the selectors of peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SelectorOperation {
    /// A policy is committed that names new peers.
    Add,
    /// A policy is committed or removed after which peers are no longer named.
    Remove,
    /// Identities are added, changed or removed.
    IdentityUpdates,
}

impl SelectorOperation {
    fn name(self) -> &'static str {
        match self {
            SelectorOperation::Add => "add_selector",
            SelectorOperation::Remove => "remove_selector",
            SelectorOperation::IdentityUpdates => "identity_updates",
        }
    }
}

/// Counters of events.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    changes: Family<ChangeLabels, Counter>,
    writes: Family<WriteLabels, Counter>,
    delays: Family<DelayLabels, Histogram, fn() -> Histogram>,
    updates: Family<ScopeLabels, Histogram, fn() -> Histogram>,
    rules: Gauge,
    revision: Gauge,
    selectors: Family<CacheLabels, Gauge>,
    identities: Family<CacheLabels, Gauge>,
    operations: Family<OperationLabels, Histogram, fn() -> Histogram>,
    /// The features that policies use.
    pub(crate) features: FeatureCounters,
}

impl Default for Counters {
    fn default() -> Counters {
        let delays = Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram);
        let updates = Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram);
        let operations =
            Family::new_with_constructor((|| Histogram::new(OPERATION_SECONDS)) as fn() -> Histogram);
        Counters {
            changes: Family::default(),
            writes: Family::default(),
            delays,
            updates,
            rules: Gauge::default(),
            revision: Gauge::default(),
            selectors: Family::default(),
            identities: Family::default(),
            operations,
            features: FeatureCounters::default(),
        }
    }
}

/// Returns Cilium's label for a source of policies.
fn source_label(source: &str) -> &'static str {
    match source {
        STATIC_CNP_PATH => "directory",
        _ => "custom-resource",
    }
}

impl Counters {
    /// Counts a change of a policy object.
    pub(crate) fn object_changed(&self, operation: &'static str, source: &str, ok: bool) {
        let outcome = if ok { "success" } else { "fail" };
        let labels = ChangeLabels { operation, outcome, source: source_label(source) };
        self.changes.get_or_create(&labels).inc();
    }

    /// Counts the map writes of a round, and the delay until objects of these sources were in force at this revision.
    pub(crate) fn round(
        &self,
        writes: &MapWrites,
        revision: u64,
        sources: &BTreeSet<Arc<str>>,
        took: Duration,
    ) {
        self.revision.set(revision as i64);
        let labels: BTreeSet<&'static str> = sources.iter().map(|source| source_label(source)).collect();
        for source in labels {
            self.delays.get_or_create(&DelayLabels { source }).observe(took.as_secs_f64());
        }
        for (way, count) in [("in-place", writes.in_place), ("swap", writes.swapped)] {
            self.writes.get_or_create(&WriteLabels { way }).inc_by(count as u64);
        }
    }

    /// Counts the time until the maps had the rows of changed identities.
    pub(crate) fn identities_in_maps(&self, took: Duration) {
        self.updates.get_or_create(&GLOBAL).observe(took.as_secs_f64());
    }

    /// Counts the time of an operation on selectors.
    pub(crate) fn selector_operation(&self, operation: SelectorOperation, took: Duration) {
        self.observe(operation, "operation", took);
    }

    /// Counts the time that an operation on selectors has waited for the lock.
    pub(crate) fn selector_lock(&self, operation: SelectorOperation, waited: Duration) {
        self.observe(operation, "lock", waited);
    }

    fn observe(&self, operation: SelectorOperation, scope: &'static str, took: Duration) {
        let labels = OperationLabels { operation: operation.name(), scope, r#type: PEERS.r#type };
        self.operations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Sets the gauges of the repository.
    pub(crate) fn repository(&self, engine: &Engine) {
        self.rules.set(engine.rule_count() as i64);
        self.revision.set(engine.revision() as i64);
        self.selectors.get_or_create(&PEERS).set(engine.peer_selector_count() as i64);
        self.identities(engine);
    }

    /// Sets the gauge of identities, which change without policies too.
    pub(crate) fn identities(&self, engine: &Engine) {
        self.identities.get_or_create(&PEERS).set(engine.identity_count() as i64);
    }

    /// Registers all metrics.
    pub(crate) fn register(&self, metrics: &Metrics, scrape: Scrape) {
        let help = "Number of policy changes by outcome";
        metrics.register("policy_change_total", help, self.changes.clone());
        let help = "Number of changed policy maps by the way they were changed";
        metrics.register("policy_map_changes_total", help, self.writes.clone());
        let help = "Time between a policy change and it being fully deployed into the datapath";
        metrics.register("policy_implementation_delay", help, self.delays.clone());
        metrics.register("policy", "Number of policies currently loaded", self.rules.clone());
        let help = "Highest policy revision number in the agent";
        metrics.register("policy_max_revision", help, self.revision.clone());
        let help = "Number of selectors currently in use";
        metrics.register("policy_selector_cache_selectors", help, self.selectors.clone());
        let help = "Number of identities known to the selectors";
        metrics.register("policy_selector_cache_identities", help, self.identities.clone());
        let help = "Time until changed identities are in all policy maps";
        metrics.register("policy_incremental_update_duration", help, self.updates.clone());
        let help = "Time of operations on selectors: of those that a policy adds or removes, and of updates of identities";
        metrics.register("policy_selector_cache_operation_duration_seconds", help, self.operations.clone());
        metrics.register_collector(self.features.clone());
        metrics.register_collector(scrape);
    }
}

/// Returns the endpoints in audit mode: packets that their policy would drop pass, and are reported.
pub(crate) fn audited(datapath: &dyn Datapath) -> BTreeSet<u16> {
    let all = datapath.restored().unwrap_or_default();
    all.iter().filter(|endpoint| endpoint.flags & ep_flag::POLICY_AUDIT != 0).map(|e| e.id).collect()
}

/// Values that are read at a scrape.
pub(crate) struct Scrape {
    pub(crate) endpoints: Table<EndpointPolicy>,
    pub(crate) selectors: Table<PeerSelector>,
    pub(crate) classes: SelectorClasses,
    pub(crate) datapath: Arc<dyn Datapath>,
    /// Has the threshold of the fill level from which maps are reported.
    pub(crate) config: ConfigWatch<PolicyConfig>,
}

impl std::fmt::Debug for Scrape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let snapshot = self.endpoints.snapshot();
        let rows = || self.endpoints.all(&snapshot);
        let audited = audited(&*self.datapath);
        let help = "Number of endpoints labeled by policy enforcement status";
        let name = "policy_endpoint_enforcement_status";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for enforcement in
            ["none", "ingress", "egress", "both", "audit-ingress", "audit-egress", "audit-both"]
        {
            let word = |row: &EndpointPolicy| row.enabled_audited(audited.contains(&row.subject.endpoint));
            let count = rows().filter(|row| word(row) == enforcement).count();
            ConstGauge::new(count as i64).encode(family.encode_family(&[("enforcement", enforcement)])?)?;
        }
        let capacity = self.datapath.policy_capacity().max(1) as f64;
        // The rows of a full map do not fit, so it contains none of them.
        let level = |row: &EndpointPolicy| match row.state {
            RealizationState::Full => 1.0,
            _ => {
                let counts = [row.ingress, row.egress];
                counts.iter().map(|rows| rows.allow + rows.deny).sum::<usize>() as f64 / capacity
            }
        };
        let highest = rows().map(|row| level(row)).fold(0.0, f64::max);
        if highest >= self.config.get().bpf_policy_map_pressure_metrics_threshold && highest > 0.0 {
            let help = "Fill percentage of map, tagged by map name";
            let mut family = encoder.encode_descriptor("bpf_map_pressure", help, None, MetricType::Gauge)?;
            ConstGauge::new(highest).encode(family.encode_family(&[("map_name", "cilium_policy_v2_*")])?)?;
        }
        let help = "The maximum number of identities selected by a selector of peers, by class";
        let name = "policy_selector_match_count_max";
        let mut largest = SelectorClass::ALL.map(|class| (class, 0));
        for row in self.selectors.all(&snapshot) {
            let class = self.classes.of(&row.0);
            let of_class = largest.iter_mut().filter(|(other, _)| *other == class);
            of_class.for_each(|(_, largest)| *largest = row.0.identities.len().max(*largest));
        }
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (class, largest) in largest {
            ConstGauge::new(largest as i64).encode(family.encode_family(&[("class", class.name())])?)?;
        }
        let help = "Number of redirects that cannot be made, since their proxy has no port";
        let missing: usize = rows().map(|row| row.missing_redirects).sum();
        ConstGauge::new(missing as i64).encode(encoder.encode_descriptor(
            "policy_missing_proxy_redirects",
            help,
            None,
            MetricType::Gauge,
        )?)?;
        let help = "Number of endpoints that are denied wholly because their policy map is full";
        let name = "policy_endpoints_overflowed";
        let full = rows().filter(|row| row.state == RealizationState::Full).count();
        ConstGauge::new(full as i64).encode(encoder.encode_descriptor(
            name,
            help,
            None,
            MetricType::Gauge,
        )?)?;
        Ok(())
    }
}
