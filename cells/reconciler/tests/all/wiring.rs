//! A reconciler as a job of a module.

use std::sync::Arc;

use hive::prelude::*;
use reconciler::{Handle, OpCx, OpResult, Ops, Reconciler, SharedOps};
use statedb::{Rows, RwTable, Table};

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

/// Counts of its calls, in a field of its own: only the owner of the operations sees it.
#[derive(Default)]
struct Counted {
    target: Target,
    updates: usize,
}

impl Ops<Route> for Counted {
    fn update(&mut self, cx: &OpCx<'_>, route: &mut Route) -> OpResult {
        self.updates += 1;
        self.target.update(cx, route)
    }

    fn delete(&mut self, cx: &OpCx<'_>, route: &Route) -> OpResult {
        self.target.delete(cx, route)
    }

    fn prune(&mut self, cx: &OpCx<'_>, wanted: Rows<'_, Route>) -> OpResult {
        self.target.prune(cx, wanted)
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_inspects_operations_that_the_reconciler_uses() {
    let mut world = World::new();
    let ops = SharedOps::new(Counted::default());
    let handle = world.run(world.builder().ops(ops.clone()));
    let revision = world.put(1..=3);
    handle.wait_until_ok(revision).await.unwrap();
    assert_eq!(ops.lock().updates, 3);
    assert!(world.target.rows().is_empty(), "the builder's own operations are replaced");
    assert_eq!(ops.lock().target.rows(), [1, 2, 3]);
}

#[test]
fn contexts_and_entries_of_batches_are_made_by_tests_of_operations() {
    let world = World::new();
    let snapshot = world.routes.snapshot();
    let mut target = Target::default();
    let mut row = route(1, "a");
    target.update(&OpCx::new(&snapshot, 1), &mut row).unwrap();
    assert_eq!((row.handle, target.rows()), (1001, vec![1]));
    let entry = reconciler::BatchEntry::new(row, 7);
    assert!(entry.result.is_ok());
    assert_eq!((entry.object.id, entry.revision), (1, 7));
}
