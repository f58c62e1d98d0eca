//! A reconciler as a job of a module.

use std::sync::Arc;

use hive::prelude::*;
use reconciler::{Handle, Reconciler};
use statedb::{RwTable, Table};

use crate::world::*;

fn routes(target: Target) -> Cell {
    let start = move |table: Arc<RwTable<Route>>, jobs: JobGroup| -> Arc<Handle> {
        let builder = Reconciler::builder((*table).clone())
            .status(|route: &Route| &route.status, |route, status| route.status = status)
            .ops(target.clone());
        Arc::new(builder.spawn(&jobs))
    };
    module("routes", "Routes of the kernel", [statedb::table::<Route>(), provide(start)])
}

#[tokio::test(start_paused = true)]
async fn it_runs_from_start_to_stop_and_reports_its_health() {
    let target = Target::default();
    let cells = [statedb::cell(), routes(target.clone()), invoke(|_: Arc<Handle>, _: Arc<Table<Route>>| ())];
    let mut hive = TestHive::new(cells);
    hive.start().await;
    let (table, handle) = (hive.get::<RwTable<Route>>(), hive.get::<Handle>());
    target.set(2, Fault::Fail);
    let (_, snapshot) = table.transact(|w| [1, 2].map(|id| drop(w.insert(route(id, "a")))));
    handle.wait_until(table.revision(&snapshot)).await.unwrap();
    pass(10 * MS).await;
    assert_eq!(target.rows(), [1]);
    let health = hive.health("routes.job-reconcile");
    assert_eq!((health.level, health.error.as_str()), (Level::Degraded, "update of 2 refused"));
    assert_eq!(health.message, "1 error(s)");
    target.heal();
    handle.wait_until_ok(table.revision(&snapshot)).await.unwrap();
    pass(10 * MS).await;
    assert_eq!(hive.health("routes.job-reconcile").message, "OK, 2 object(s)");
    assert_eq!(hive.health("routes.job-refresh").message, "Next refresh in 30m0s");
    assert_eq!(handle.metrics().module(), "routes");
    hive.stop().await;
    assert!(handle.wait_until(u64::MAX).await.is_err());
}
