//! The collection of CiliumNodes without a Node.

use std::sync::Arc;
use std::time::Duration;

use hive::JobCx;
use k8s_tables::Row;
use k8s_types::cilium::CiliumNode;
use k8s_types::core::Node;
use k8s_types::{Key, Kind, SmolStr};
use statedb::{ReadSource, Table};
use tokio::time::{Instant, sleep};

use crate::candidates::Candidates;
use crate::requests::{Requests, Run};

/// The annotation of CiliumNodes that are never collected.
const KEEP: &str = "cilium.io/do-not-gc";

/// Deletes CiliumNodes without a Node.
pub(crate) struct NodeCollector {
    pub(crate) cilium_nodes: Arc<Table<Row<CiliumNode>>>,
    pub(crate) nodes: Arc<Table<Row<Node>>>,
    pub(crate) requests: Requests,
    pub(crate) interval: Duration,
}

impl NodeCollector {
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        cx.health.ok("Waits for the lists of CiliumNodes and Nodes");
        let listed = async {
            self.cilium_nodes.wait_initialized().await;
            self.nodes.wait_initialized().await;
        };
        if cx.token().run_until_cancelled(listed).await.is_none() {
            return Ok(());
        }
        let mut candidates = Candidates::default();
        let rounds = async {
            loop {
                self.collect(&mut candidates, &cx).await;
                sleep(self.interval).await;
            }
        };
        cx.token().run_until_cancelled(rounds).await;
        Ok(())
    }

    async fn collect(&self, candidates: &mut Candidates, cx: &JobCx) {
        let mut run = Run::default();
        let found: Vec<(Key, SmolStr)> = {
            let snapshot = self.cilium_nodes.snapshot();
            let stale = self.cilium_nodes.all(&snapshot).filter(|row| is_stale(row, &self.nodes, &snapshot));
            stale.map(|row| (Key::new("", row.metadata.name.clone()), row.metadata.uid.clone())).collect()
        };
        for (key, uid) in candidates.update(found, Instant::now(), self.interval) {
            if !self.is_still_stale(&key, &uid) {
                continue;
            }
            let answer = self.requests.delete(Kind::CiliumNode, &key, &uid, None).await;
            if answer.is_ok() {
                tracing::info!(node = %key, "Deleted a CiliumNode without a Node");
            }
            if !run.count(answer) {
                break;
            }
        }
        let (done, waiting) = (run.done, candidates.len().saturating_sub(run.done));
        run.report(&cx.health, &format!("{done} CiliumNodes were deleted, {waiting} have no Node"));
    }

    fn is_still_stale(&self, key: &Key, uid: &SmolStr) -> bool {
        let snapshot = self.cilium_nodes.snapshot();
        let row = self.cilium_nodes.get(&snapshot, Row::by_key(key));
        row.is_some_and(|row| row.metadata.uid == *uid && is_stale(row, &self.nodes, &snapshot))
    }
}

/// Whether the Node is missing. Kubernetes itself collects those with an owner.
fn is_stale(cilium_node: &CiliumNode, nodes: &Table<Row<Node>>, source: &impl ReadSource) -> bool {
    let metadata = &cilium_node.metadata;
    let is_kept = metadata.annotations.get(KEEP).is_some_and(|value| value == "true");
    let is_alone = || nodes.get(source, Row::by_name("", &metadata.name)).is_none();
    !is_kept && metadata.owner_references.is_empty() && is_alone()
}
