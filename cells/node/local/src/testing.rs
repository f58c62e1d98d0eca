//! A node that a test makes up, for hives that look at none.

use std::sync::Arc;

use hive::prelude::*;
use statedb::RwTable;

use crate::node::LocalNode;
use crate::store::LocalNodeStore;

/// Provides this node in the place of [`cell()`](crate::cell()): its table and `Arc<LocalNodeStore>`.
pub fn given(node: LocalNode) -> Cell {
    let store = move |table: Arc<RwTable<LocalNode>>| {
        table.transact(|txn| txn.insert(node.clone()));
        Arc::new(LocalNodeStore::new(table))
    };
    module("local-node", "A node that is given", [statedb::table::<LocalNode>(), provide(store)])
}
