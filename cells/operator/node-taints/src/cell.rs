//! The wiring.

use std::collections::BTreeMap;
use std::sync::Arc;

use hive::prelude::*;
use k8s_tables::Row;
use k8s_types::DEFAULT_NAMESPACE;
use k8s_types::core::Node;
use k8s_types::selector::LabelRequirements;
use k8s_writer::Writer;
use operator_definitions::Registered;
use operator_election::{ElectionConfig, Leadership};
use operator_objects::PodRow;
use statedb::Table;

use crate::agent_pods::AgentPods;
use crate::sync::NodeTaints;
use crate::{Error, NodeTaintsConfig};

/// Removes and adds the taint of nodes, and sets their condition. A cell of the leader.
pub fn cell() -> Cell {
    let cells = [config::<NodeTaintsConfig>(), invoke(start)];
    module("node-taint-sync", "Taints and conditions of nodes by the readiness of their agents", cells)
}

#[derive(Params)]
struct NodeTaintsParams {
    config: Config<NodeTaintsConfig>,
    election: Config<ElectionConfig>,
    nodes: Arc<Table<Row<Node>>>,
    pods: Arc<Table<PodRow>>,
    writer: Arc<Writer>,
    leadership: Arc<Leadership>,
    _registered: Arc<Registered>,
    jobs: JobGroup,
    health: Health,
}

fn start(p: NodeTaintsParams) -> Result<(), Error> {
    let value = &p.config.cilium_pod_labels;
    let selector: LabelRequirements =
        value.parse().map_err(|source| Error::PodLabels { value: value.clone(), source })?;
    if !p.config.remove_cilium_node_taints && !p.config.set_cilium_is_up_condition {
        p.health.ok("Off (remove-cilium-node-taints=false, set-cilium-is-up-condition=false)");
        return Ok(());
    }
    let namespaces = [&p.config.cilium_pod_namespace, &p.election.k8s_namespace];
    let namespace = namespaces.into_iter().find(|namespace| !namespace.is_empty());
    let namespace = namespace.map_or(DEFAULT_NAMESPACE, String::as_str).to_owned();
    let sync = NodeTaints {
        agents: AgentPods::new(namespace, selector),
        config: p.config,
        nodes: p.nodes,
        pods: p.pods,
        writer: p.writer,
        leadership: Leadership::clone(&p.leadership),
        enqueued: BTreeMap::new(),
    };
    p.jobs.one_shot("sync", move |cx: JobCx| sync.run(cx)).add();
    Ok(())
}
