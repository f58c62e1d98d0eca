//! The wiring.

use std::sync::Arc;

use hive::prelude::*;
use k8s_tables::Row;
use k8s_tables::cilium::CiliumNode;
use local_node::LocalNode;
use statedb::{RwTable, Table};

use crate::follow::Follow;
use crate::node::Node;

/// Provides the table `nodes`.
pub fn cell() -> Cell {
    module("node-manager", "The nodes of the cluster", [statedb::table::<Node>(), invoke(follow)])
}

#[derive(Params)]
struct FollowParams {
    nodes: Arc<RwTable<Node>>,
    objects: Arc<Table<Row<CiliumNode>>>,
    local: Arc<Table<LocalNode>>,
    jobs: JobGroup,
}

fn follow(p: FollowParams) {
    let mut txn = p.nodes.write();
    let initializer = txn.register_initializer("ciliumnodes");
    txn.commit();
    let follow = Follow { nodes: p.nodes, objects: p.objects, local: p.local, initializer };
    p.jobs
        .one_shot("nodes", move |cx: JobCx| async move {
            follow.run(cx).await;
            Ok(())
        })
        .add();
}
