//! The wiring.

use std::collections::BTreeMap;
use std::sync::Arc;

use hive::Param;
use hive::prelude::*;
use k8s_tables::Row;
use k8s_writer::Writer;
use operator_definitions::Registered;
use operator_election::Leadership;
use operator_status::StatusWriter;
use policy_engine::Settings;
use statedb::Table;

use crate::PolicyStatusConfig;
use crate::job::PolicyStatus;
use crate::object::PolicyObject;

/// Sets the condition `Valid` of network policies. A cell of the leader.
pub fn cell() -> Cell {
    let cells = [config::<PolicyStatusConfig>(), invoke(start)];
    module("policy-status", "Whether network policies are valid", cells)
}

/// Provides the tables of network policies, for this cell and others of the leader. They are empty unless a function returns true
/// for its dependency, such as the options of the cells that read them.
pub fn tables<P: Param>(is_enabled: impl Fn(P) -> bool + Clone + Send + Sync + 'static) -> Cell {
    bundle([
        k8s_tables::optional::<PolicyObject<false>, P>(is_enabled.clone()),
        k8s_tables::optional::<PolicyObject<true>, P>(is_enabled),
    ])
}

#[derive(Params)]
struct PolicyStatusParams {
    config: Config<PolicyStatusConfig>,
    settings: Arc<hive::Settings>,
    namespaced: Arc<Table<Row<PolicyObject<false>>>>,
    clusterwide: Arc<Table<Row<PolicyObject<true>>>>,
    writer: Arc<Writer>,
    leadership: Arc<Leadership>,
    /// Objects can be read once their kinds are defined.
    _registered: Arc<Registered>,
    jobs: JobGroup,
    health: Health,
}

fn start(p: PolicyStatusParams) {
    if !p.config.validate_network_policy {
        p.health.ok("Off (validate-network-policy=false)");
        return;
    }
    let settings = Arc::new(engine_settings(&p.settings));
    let write = StatusWriter::new(&p.writer, &p.leadership, "policy-status");
    let namespaced = PolicyStatus {
        settings: settings.clone(),
        policies: p.namespaced,
        write: write.clone(),
        invalid: BTreeMap::new(),
    };
    let clusterwide = PolicyStatus { settings, policies: p.clusterwide, write, invalid: BTreeMap::new() };
    p.jobs.one_shot("namespaced", move |cx: JobCx| namespaced.run(cx)).add();
    p.jobs.one_shot("clusterwide", move |cx: JobCx| clusterwide.run(cx)).add();
}

/// Returns the settings of the agents that decide about the validity of policies. They are options of cells of the agent, or of another cell.
#[must_use]
pub fn engine_settings(options: &hive::Settings) -> Settings {
    let defaults = Settings::default();
    let is_on = |option, default| options.value(option).map_or(default, |(_, value)| value == "true");
    Settings {
        non_default_deny: is_on("enable-non-default-deny-policies", defaults.non_default_deny),
        icmp_rules: is_on("enable-icmp-rules", defaults.icmp_rules),
        node_selector_labels: is_on("enable-node-selector-labels", defaults.node_selector_labels),
        default_local_cluster: is_on("policy-default-local-cluster", defaults.default_local_cluster),
        cluster: options.value("cluster-name").map_or(defaults.cluster.clone(), |(_, name)| name.into()),
        ..defaults
    }
}
