//! The job that follows Nodes and agent pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hive::JobCx;
use hive::prelude::Config;
use jiff::Timestamp;
use k8s_tables::Row;
use k8s_types::core::Node;
use k8s_types::{Key, Kind, SmolStr};
use k8s_writer::{Mutation, Step, Target, Writer};
use operator_election::Leadership;
use operator_objects::PodRow;
use statedb::{Batch, Table};

use crate::NodeTaintsConfig;
use crate::agent_pods::AgentPods;
use crate::node::Change;

/// Keeps taints and conditions of nodes in step with their agents.
pub(crate) struct NodeTaints {
    pub(crate) config: Config<NodeTaintsConfig>,
    pub(crate) agents: AgentPods,
    pub(crate) nodes: Arc<Table<Row<Node>>>,
    pub(crate) pods: Arc<Table<PodRow>>,
    pub(crate) writer: Arc<Writer>,
    pub(crate) leadership: Leadership,
    /// Enqueued changes by node and part, until the table shows that they are done.
    pub(crate) enqueued: BTreeMap<(SmolStr, &'static str), Change>,
}

impl NodeTaints {
    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        cx.health.ok("Waits for the lists of Nodes and pods");
        let (nodes, pods) = (self.nodes.clone(), self.pods.clone());
        let listed = async {
            nodes.wait_initialized().await;
            pods.wait_initialized().await;
        };
        if cx.token().run_until_cancelled(listed).await.is_none() {
            return Ok(());
        }
        let (mut node_changes, mut pod_changes) = (nodes.changes(), pods.changes());
        // All pods before the first node: a node may have a ready agent and one that is not.
        self.update(pod_changes.try_next());
        loop {
            let concerned = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                batch = pod_changes.next() => self.update(batch),
                batch = node_changes.next() => {
                    batch.iter().map(|change| change.object.metadata.name.clone()).collect()
                }
            };
            for node in concerned {
                self.sync(&node);
            }
            let (all, not_ready) = self.agents.counts();
            cx.health.ok(format_args!("{all} nodes have an agent, {not_ready} of them none that is ready"));
        }
    }

    fn update(&mut self, batch: Batch<PodRow>) -> BTreeSet<SmolStr> {
        batch.iter().flat_map(|change| self.agents.update(&change.object, change.deleted)).collect()
    }

    /// Enqueues the changes that a node needs, and withdraws those that it does not need any more.
    fn sync(&mut self, name: &SmolStr) {
        let desired = Change::desired(self.agents.readiness(name), &self.config);
        let snapshot = self.nodes.snapshot();
        let row = self.nodes.get(&snapshot, Row::by_name("", name));
        let key = &self.config.agent_not_ready_taint_key;
        let needed: Vec<Change> = match row {
            Some(row) => {
                desired.into_iter().filter(|change| change.step(row, key, "") != Step::Done).collect()
            }
            None => Vec::new(),
        };
        for part in [Change::AddTaint.part(), Change::SetCondition.part()] {
            let enqueued = (name.clone(), part);
            match needed.iter().find(|change| change.part() == part) {
                Some(change) => {
                    if self.enqueued.insert(enqueued, *change) != Some(*change) {
                        tracing::info!(node = %name, change = ?change, "A node follows the readiness of its agent");
                    }
                    self.enqueue(name, *change);
                }
                None if self.enqueued.remove(&enqueued).is_some() => {
                    self.writer.forget(&target(name).part(part));
                }
                None => {}
            }
        }
    }

    fn enqueue(&self, name: &SmolStr, change: Change) {
        let (nodes, leadership, name) = (self.nodes.clone(), self.leadership.clone(), name.clone());
        let key = self.config.agent_not_ready_taint_key.clone();
        let target = target(&name);
        // Decides by the table, as operators may not `get` Nodes.
        let decide = move |_: Option<&serde_json::Value>| {
            let snapshot = nodes.snapshot();
            let Some(row) = nodes.get(&snapshot, Row::by_name("", &name)) else { return Step::Done };
            match change.step(row, &key, &Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()) {
                Step::Done => Step::Done,
                _ if !leadership.holds() => Step::GiveUp("this process does not lead any more".to_owned()),
                step => step,
            }
        };
        // Dropped: the next change of the node shows how it went.
        let mutation = Mutation::new(decide).read_from_cache(|| None);
        drop(self.writer.enqueue(target.part(change.part()), mutation));
    }
}

fn target(node: &SmolStr) -> Target {
    Target::new(Kind::Node, Key::new("", node.clone()))
}
