//! Updates that wait for another table: they are retried when it changes, and block no other row.

use reconciler::{OpCx, OpResult, Ops, Status, StatusKind, Waiting};
use serde::Serialize;
use statedb::{Query, Rows, RwTable, TableDisplay, TableSpec};
use tokio::time::{Duration, Instant};

use crate::world::*;

/// A row of another cell's table: an object's update waits for the row with its id.
#[derive(Clone, Debug, Serialize)]
struct Gate(u32);

impl TableSpec for Gate {
    const NAME: &'static str = "gates";
    type Key<'a> = u32;

    fn key(&self) -> u32 {
        self.0
    }
}

impl TableDisplay for Gate {
    fn columns() -> &'static [&'static str] {
        &["ID"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }
}

/// A target with updates that wait for the gates. Objects from 100 on do not wait; a handle of 1 marks an object that
/// has.
struct Gated {
    target: Target,
    gates: RwTable<Gate>,
    patience: Option<Duration>,
}

impl Ops<Route> for Gated {
    fn update(&mut self, cx: &OpCx<'_>, route: &mut Route) -> OpResult {
        let snapshot = self.gates.snapshot();
        let (gate, watch) = self.gates.get_watch(&snapshot, Query::primary(route.id));
        if gate.is_none() && route.id < 100 {
            self.target.0.lock().log.push(format!("waits {}", route.id));
            let begins = route.handle == 0;
            route.handle = 1;
            let waiting = Waiting::on(watch);
            return match self.patience {
                Some(patience) if begins => Err(waiting.until(Instant::now() + patience).into()),
                Some(_) => Err("waited for too long".into()),
                None => Err(waiting.into()),
            };
        }
        self.target.update(cx, route)
    }

    fn delete(&mut self, cx: &OpCx<'_>, route: &Route) -> OpResult {
        self.target.delete(cx, route)
    }

    fn prune(&mut self, cx: &OpCx<'_>, wanted: Rows<'_, Route>) -> OpResult {
        self.target.prune(cx, wanted)
    }
}

fn gated(world: &World, patience: Option<Duration>) -> (Ready, RwTable<Gate>) {
    let gates: RwTable<Gate> = world.routes.db().table().unwrap();
    let ops = Gated { target: world.target.clone(), gates: gates.clone(), patience };
    let builder = reconciler::Reconciler::builder(world.routes.clone())
        .status(|route: &Route| &route.status, |route, status| route.status = status)
        .prune(Duration::ZERO)
        .ops(ops);
    (builder, gates)
}

fn open(gates: &RwTable<Gate>, id: u32) {
    gates.transact(|w| w.insert(Gate(id)));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_object_blocks_no_other_and_is_retried_when_its_watch_closes() {
    let mut world = World::new();
    let (builder, gates) = gated(&world, None);
    let handle = world.run(builder);
    let first = world.put([1]);
    pass(MS).await;
    let second = world.put([100, 101]);
    let progress = handle.wait_until(second).await.unwrap();
    assert_eq!(world.target.rows(), [100, 101]);
    assert_eq!(
        (progress.failing_since, progress.is_ok(first)),
        (Some(first), false),
        "it is not in the target"
    );
    let row = world.get(1);
    assert!(
        row.status.is_pending() && row.handle == 1,
        "pending, with the fields that the operation has set: {row:?}"
    );
    assert!(
        world.reports.lock().iter().all(|report| matches!(report, reconciler::Report::Ok(_))),
        "no failure"
    );

    world.target.take_log();
    pass(Duration::from_secs(600)).await;
    assert!(world.target.take_log().is_empty(), "it is not tried while nothing changes");
    open(&gates, 1);
    handle.wait_until_ok(first).await.unwrap();
    assert_eq!(world.target.take_log(), ["update 1"]);
    assert!(world.get(1).status.is_done());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_closed_before_the_commit_counts() {
    let mut world = World::new();
    let (builder, gates) = gated(&world, None);
    // The gate opens between the operation and the commit of its outcome.
    world.target.set(1, Fault::Slow(MS));
    let handle = world.run(builder);
    let revision = world.put([1]);
    tokio::task::yield_now().await;
    open(&gates, 1);
    tokio::time::timeout(Duration::from_secs(1), handle.wait_until_ok(revision)).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_overdue_object_is_retried_and_keeps_its_backoff() {
    let mut world = World::new();
    let (builder, gates) = gated(&world, Some(Duration::from_secs(10)));
    let handle = world.run(builder);
    let revision = world.put([1]);
    pass(9 * Duration::from_secs(1)).await;
    assert!(world.get(1).status.is_pending());
    pass(Duration::from_secs(1) + MS).await;
    let row = world.get(1);
    assert_eq!((row.status.kind(), row.status.error()), (StatusKind::Error, Some("waited for too long")));
    assert!(handle.progress().failing_since == Some(revision));
    open(&gates, 1);
    handle.wait_until_ok(revision).await.unwrap();
    assert_eq!(handle.progress().failing_since, None);
}

#[tokio::test(start_paused = true)]
async fn a_change_or_a_delete_ends_the_wait() {
    let mut world = World::new();
    let (builder, gates) = gated(&world, None);
    let handle = world.run(builder);
    world.put([1, 2]);
    pass(MS).await;
    world.target.take_log();
    // A new version is tried at once; a deleted object is not retried when its watch closes.
    let changed = world.routes.transact(|w| w.insert(Route { status: Status::pending(), ..route(1, "b") })).1;
    handle.wait_until(world.routes.revision(&changed)).await.unwrap();
    assert_eq!((world.target.take_log(), world.get(1).via.as_str()), (vec!["waits 1".to_owned()], "b"));
    let deleted = world.delete(2);
    handle.wait_until(deleted).await.unwrap();
    open(&gates, 1);
    open(&gates, 2);
    // Rounds are rate-limited.
    pass(20 * MS).await;
    assert_eq!(world.target.take_log(), ["delete 2", "update 1"]);
    assert_eq!((world.target.rows(), handle.progress().failing_since), (vec![1], None));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_fails_and_waits_in_turn_keeps_its_backoff() {
    struct Moody(Gated, u32);
    impl Ops<Route> for Moody {
        fn update(&mut self, cx: &OpCx<'_>, route: &mut Route) -> OpResult {
            self.1 += 1;
            self.0.target.0.lock().log.push(format!("try {}", self.1));
            let snapshot = self.0.gates.snapshot();
            match self.1 % 2 {
                // Closed already.
                0 => {
                    let watch = self.0.gates.all_watch(&snapshot).1;
                    self.0.gates.transact(|w| w.insert(Gate(self.1)));
                    Err(Waiting::on(watch).into())
                }
                _ => Err(format!("fails at {:?}", cx.revision == u64::from(route.id)).into()),
            }
        }

        fn delete(&mut self, cx: &OpCx<'_>, route: &Route) -> OpResult {
            self.0.delete(cx, route)
        }

        fn prune(&mut self, cx: &OpCx<'_>, wanted: Rows<'_, Route>) -> OpResult {
            self.0.prune(cx, wanted)
        }
    }
    let mut world = World::new();
    let gates: RwTable<Gate> = world.routes.db().table().unwrap();
    let ops = Moody(Gated { target: world.target.clone(), gates, patience: None }, 0);
    let builder = reconciler::Reconciler::builder(world.routes.clone())
        .status(|route: &Route| &route.status, |route, status| route.status = status)
        .prune(Duration::ZERO)
        .ops(ops);
    world.run(builder);
    world.put([1]);
    pass(Duration::from_secs(60)).await;
    let tries = world.target.take_log().len();
    assert!((10..=30).contains(&tries), "doubling waits, two tries each: {tries}");
}
