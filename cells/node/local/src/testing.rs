//! A fake of the cell, for hives that do not read the machine's node.

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
    module("local-node", "A fixed node", [statedb::table::<LocalNode>(), provide(store)])
}
