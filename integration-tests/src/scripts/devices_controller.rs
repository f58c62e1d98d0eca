//! Links, addresses, routes and neighbours of a network namespace, which scripts change by `exec ip`.

use std::sync::Arc;

use ::devices::{Device, Neighbor, Route};
use hive::prelude::*;
use statedb::Table;

pub(super) fn cells() -> Vec<Cell> {
    let tables = invoke(|_: Arc<Table<Device>>, _: Arc<Table<Route>>, _: Arc<Table<Neighbor>>| ());
    vec![
        ::devices::cell(),
        module("health", "The table", status::table()),
        module("devices-test", "The tables", tables),
    ]
}
