//! The wiring: the table, its reconciler, the handle.

use std::sync::Arc;
use std::time::Duration;

use devices::{Device, Route};
use hive::prelude::*;
use local_node::StateConfig;
use reconciler::Reconciler;
use statedb::{RwTable, Table};

use crate::ops::KernelRoutes;
use crate::refresh::Refresher;
use crate::{DesiredRoute, Routes};

/// The write-ahead log, in the state folder.
const LOG_FILE: &str = "route-reconciler.wal";
/// Interval of prunes after the first one.
const PRUNE_INTERVAL: Duration = Duration::from_secs(30 * 60);

/// Provides tables `desired-routes` and `desired-rules`, and the handles [`Routes`] and [`Rules`](crate::Rules).
pub fn cell() -> Cell {
    let routes = module(
        "route-reconciler",
        "Desired routes in the kernel",
        [statedb::table::<DesiredRoute>(), provide(new_routes)],
    );
    bundle([routes, crate::rules::cell()])
}

fn new_routes(
    state: Config<StateConfig>,
    table: Arc<RwTable<DesiredRoute>>,
    devices: Arc<Table<Device>>,
    live: Arc<Table<Route>>,
    jobs: JobGroup,
) -> Arc<Routes> {
    let log = state.state().join(LOG_FILE);
    let own_device = Arc::default();
    let (rows, for_ops) = (table.reader(), Arc::clone(&own_device));
    let ops = KernelRoutes::new(rows, Arc::clone(&devices), Arc::clone(&live), log, for_ops);
    let handle = Reconciler::builder(RwTable::clone(&table))
        .status(|route: &DesiredRoute| &route.status, |route, status| route.status = status)
        .batch_ops(ops)
        // Indexes of devices, which the operations resolve.
        .merge(DesiredRoute::copy_indexes)
        .blocking()
        .prune(PRUNE_INTERVAL)
        .spawn(&jobs);
    let refresher = Refresher { desired: Arc::clone(&table), devices, live };
    jobs.one_shot("desired-route-refresher", move |cx| async move {
        refresher.run(cx).await;
        Ok(())
    })
    .add();
    Arc::new(Routes::new(table, handle, own_device))
}
