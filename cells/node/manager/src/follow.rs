//! The job: the local node and CiliumNodes into the table.

use std::sync::Arc;

use hive::JobCx;
use k8s_tables::Row;
use k8s_tables::cilium::CiliumNode;
use local_node::LocalNode;
use statedb::{Batch, Initializer, RwTable, Table, Writer};

use crate::node::Node;
use crate::object::{self, Cluster};

/// The parameters of the job.
pub(crate) struct Follow {
    pub(crate) nodes: Arc<RwTable<Node>>,
    pub(crate) objects: Arc<Table<Row<CiliumNode>>>,
    pub(crate) local: Arc<Table<LocalNode>>,
    pub(crate) initializer: Initializer<Node>,
}

impl Follow {
    pub(crate) async fn run(self, cx: JobCx) {
        let token = cx.token().clone();
        token.run_until_cancelled(self.follow(&cx)).await;
    }

    async fn follow(self, cx: &JobCx) {
        let Follow { nodes, objects, local, initializer } = self;
        // Before the node's name is known its own object looks like that of another node.
        local.wait_initialized().await;
        objects.wait_initialized().await;
        let mut initializer = Some(initializer);
        let mut changes = objects.changes();
        let mut own: Option<Node> = None;
        loop {
            let snapshot = objects.snapshot();
            let (batch, objects_changed) = changes.read(&snapshot, usize::MAX);
            let (row, local_changed) = local.get_watch(&snapshot, LocalNode::query());
            let node = row.map(|row| Node::from(&**row));
            apply(&nodes, &mut own, node, &batch, initializer.take());
            cx.health.ok("Running");
            tokio::select! {
                () = objects_changed.changed() => {}
                () = local_changed.changed() => {}
            }
        }
    }
}

fn cluster(local: &Node) -> Cluster {
    Cluster { name: local.cluster.clone(), id: local.cluster_id }
}

/// Writes a batch in one transaction. `own` is the local node's row in the table.
fn apply(
    nodes: &RwTable<Node>,
    own: &mut Option<Node>,
    local: Option<Node>,
    batch: &Batch<Row<CiliumNode>>,
    initializer: Option<Initializer<Node>>,
) {
    let mut txn = nodes.write();
    if let Some(local) = local.filter(|local| own.as_ref() != Some(local)) {
        txn.insert(local.clone());
        *own = Some(local);
    }
    let (cluster, name) = own.as_ref().map(|own| (cluster(own), own.name.clone())).unwrap_or_default();
    for change in batch {
        let node = object::node(&change.object.object, &cluster);
        if node.name != name {
            write(&mut txn, node, change.deleted);
        }
    }
    if let Some(initializer) = initializer {
        initializer.done(&mut txn);
    }
    txn.commit();
}

fn write(txn: &mut Writer<'_, Node>, node: Node, deleted: bool) {
    let query = || Node::by_name(&node.cluster, &node.name);
    if deleted {
        txn.delete(query());
    } else if txn.get(query()).is_none_or(|known| **known != node) {
        txn.insert(node);
    }
}
