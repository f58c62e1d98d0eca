//! The job that follows CiliumPodIPPools and CiliumNodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use hive::JobCx;
use k8s_tables::Row;
use k8s_types::SmolStr;
use k8s_types::cilium::{CiliumNode, CiliumPodIPPool};
use serde_json::{Value, json};
use statedb::{Change, Table};

use crate::cell::IGNORE;
use crate::multi_pool::{Desired, MultiPool};
use crate::write::NodeWriter;

/// Problems that health names at most.
const MAX_REPORTED_PROBLEMS: usize = 5;

/// Gives nodes ranges of pools.
pub(crate) struct PoolAllocator {
    pub(crate) pools: MultiPool,
    pub(crate) write: NodeWriter,
    /// Pools to create, by name.
    pub(crate) created: BTreeMap<String, Value>,
    /// The errors of nodes that have some.
    pub(crate) errors: BTreeMap<SmolStr, String>,
}

impl PoolAllocator {
    pub(crate) async fn run(
        mut self,
        pools: Arc<Table<Row<CiliumPodIPPool>>>,
        nodes: Arc<Table<Row<CiliumNode>>>,
        cx: JobCx,
    ) -> anyhow::Result<()> {
        for (name, object) in std::mem::take(&mut self.created) {
            self.write.pool(&name, object);
        }
        cx.health.ok("Waits for the lists of CiliumPodIPPools and CiliumNodes");
        let listed = async {
            pools.wait_initialized().await;
            nodes.wait_initialized().await;
        };
        if cx.token().run_until_cancelled(listed).await.is_none() {
            return Ok(());
        }
        let (mut pool_changes, mut node_changes) = (pools.changes(), nodes.changes());
        // Pools first: nodes request ranges of them.
        let first = pool_changes.next().await;
        self.define(first.into_iter());
        let mut is_first = true;
        loop {
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                batch = pool_changes.next(), if !is_first => {
                    self.define(batch.into_iter());
                    self.sync_all(&nodes, |_| true);
                }
                batch = node_changes.next() => {
                    let batch: Vec<Change<Row<CiliumNode>>> = batch.into_iter().collect();
                    self.sync_batch(batch, std::mem::take(&mut is_first), &nodes);
                }
            }
            self.report(&cx);
        }
    }

    fn define(&mut self, batch: impl Iterator<Item = Change<Row<CiliumPodIPPool>>>) {
        for change in batch {
            match change.deleted {
                true => self.pools.undefine(&change.object.metadata.name),
                false => self.pools.define(&change.object),
            }
        }
    }

    fn sync_batch(
        &mut self,
        mut batch: Vec<Change<Row<CiliumNode>>>,
        is_first: bool,
        nodes: &Table<Row<CiliumNode>>,
    ) {
        if is_first {
            // Nodes with ranges keep them before others get any; of two with the same one the older node does.
            batch.sort_by_key(|change| {
                let (spec, metadata) = (&change.object.spec, &change.object.metadata);
                let created = metadata.creation_timestamp.map(|time| time.seconds());
                (spec.ipam.pools.allocated.is_empty(), created, metadata.name.clone())
            });
            // All ranges that nodes have are taken before any is allocated.
            for change in batch.iter().filter(|change| !change.deleted && !is_ignored(&change.object)) {
                let mut pools = change.object.spec.ipam.pools.clone();
                pools.requested.clear();
                self.pools.sync(&change.object.metadata.name, &pools);
            }
        }
        let mut has_freed = false;
        for change in &batch {
            match change.deleted {
                true => {
                    let name = &change.object.metadata.name;
                    has_freed |= self.pools.remove(name);
                    self.errors.remove(name);
                }
                false => has_freed |= self.sync(&change.object),
            }
        }
        if has_freed {
            let waiting: Vec<SmolStr> = self.errors.keys().cloned().collect();
            self.sync_all(nodes, |name| waiting.contains(name));
        }
    }

    fn sync_all(&mut self, nodes: &Table<Row<CiliumNode>>, is_included: impl Fn(&SmolStr) -> bool) {
        let snapshot = nodes.snapshot();
        for row in nodes.all(&snapshot).filter(|row| is_included(&row.metadata.name)) {
            self.sync(row);
        }
    }

    /// Serves a node. Returns whether it has given ranges back.
    fn sync(&mut self, row: &Row<CiliumNode>) -> bool {
        if is_ignored(row) {
            return false;
        }
        let (metadata, pools) = (&row.metadata, &row.spec.ipam.pools);
        let name = &metadata.name;
        let Desired { allocated, error, has_freed } = self.pools.sync(name, pools);
        if let Some(allocated) = allocated {
            tracing::info!(node = %name, pools = %allocated, "Allocated pod ranges of pools");
            self.write.allocated(name, &metadata.uid, &json!(pools.allocated), allocated);
        }
        let is_new = self.errors.get(name).map_or("", String::as_str) != error;
        if is_new && !error.is_empty() {
            tracing::warn!(node = %name, error, "A node does not get the pod ranges that it requests");
        }
        // Also one that an earlier operator has left.
        if is_new || row.status.ipam.operator_status.error != error {
            self.write.error(name, &metadata.uid, error.clone());
        }
        match error.is_empty() {
            true => drop(self.errors.remove(name)),
            false => drop(self.errors.insert(name.clone(), error)),
        }
        has_freed
    }

    fn report(&self, cx: &JobCx) {
        let nodes = self.errors.iter().map(|(name, error)| format!("node {name}: {error}"));
        let problems: Vec<String> = nodes.chain(self.pools.problems()).collect();
        let summary = self.pools.summary();
        match problems.is_empty() {
            true => cx.health.ok(summary),
            false => {
                let error = hive::health::summarize(problems, MAX_REPORTED_PROBLEMS, "; ");
                cx.health.degraded(summary, error);
            }
        }
    }
}

fn is_ignored(row: &Row<CiliumNode>) -> bool {
    row.metadata.annotations.get(IGNORE).is_some_and(|value| value == "true")
}
