//! Fakes of the cell, for hives that do not read the machine's node.

use std::sync::Arc;

use hive::prelude::*;
use statedb::RwTable;

use crate::host::NodeName;
use crate::node::LocalNode;
use crate::settings::Settings;
use crate::store::LocalNodeStore;
use crate::{AutomaticRanges, LocalNodeConfig};

/// Provides this node in the place of [`cell()`](crate::cell()): its table and `Arc<LocalNodeStore>`.
pub fn given(node: LocalNode) -> Cell {
    let store = move |table: Arc<RwTable<LocalNode>>| {
        table.transact(|txn| txn.insert(node.clone()));
        Arc::new(LocalNodeStore::new(table))
    };
    module("local-node", "A fixed node", [statedb::table::<LocalNode>(), provide(store)])
}

/// The same with the node's name, the options of the cell, and automatic ranges.
pub fn row(node: LocalNode) -> Cell {
    let name = NodeName::new(&node.name);
    let automatic = |config: Config<LocalNodeConfig>, families: Config<maps::FamilyConfig>| {
        let settings = Settings::new(&config, families.enable_ipv4, families.enable_ipv6);
        settings.map(|settings| Arc::new(AutomaticRanges(settings)))
    };
    bundle([given(node), config::<LocalNodeConfig>(), supply(Arc::new(name)), provide(automatic)])
}
