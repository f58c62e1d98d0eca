//! A table that nobody fills but the script.

use std::sync::Arc;

use devices::NodeAddress;
use hive::prelude::*;
use statedb::RwTable;

pub(super) fn cells() -> Vec<Cell> {
    let cells = [statedb::table::<NodeAddress>(), invoke(|_: Arc<RwTable<NodeAddress>>| ())];
    vec![module("node-address", "The table node-addresses", cells)]
}
