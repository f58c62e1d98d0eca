//! Writes during rounds, partially failed batches, races of reconcilers.

use std::time::Duration;

use reconciler::{Reconciler, Report, Status, StatusKind, StatusSet};
use serde::Serialize;
use statedb::{Db, Obj, Query, Rows, RwTable, TableDisplay, TableSpec};

use crate::world::*;

#[tokio::test(start_paused = true)]
async fn failures_of_a_batch_are_retried_one_by_one() {
    let mut world = World::new();
    let handle = world.run(world.builder().batch_ops(world.target.clone()).prune(Duration::ZERO));
    (1..=20).step_by(2).for_each(|id| world.target.set(id, Fault::Fail));
    let revision = world.put(1..=20);
    let progress = handle.wait_until(revision).await.unwrap();
    assert_eq!(progress.failing_since, Some(1), "the first of the odd ones");
    assert_eq!(world.target.rows(), (2..=20).step_by(2).collect::<Vec<_>>());
    let state = |id| world.get(id).status.kind();
    assert!((1..=20).all(|id| (state(id) == StatusKind::Done) == (id % 2 == 0)));
    let errors = (1..=20).step_by(2).map(|id| format!("update of {id} refused")).collect::<Vec<_>>();
    pass(MS).await;
    assert_eq!(world.reports.lock().last(), Some(&degraded(10, &errors.join("\n"))));
    world.target.take_log();
    world.target.heal();
    pass(250 * MS).await;
    let log = world.target.take_log();
    assert!(log.len() == 10 && log.iter().all(|line| line.starts_with("update ")), "{log:?}");
    assert!(handle.progress().is_ok(revision));
    // The same for deletes, with one error more than are reported.
    (1..=11).for_each(|id| world.target.set(id, Fault::Fail));
    world.routes.transact(|w| w.delete_all());
    pass(10 * MS).await;
    let Some(Report::Degraded { message, errors, .. }) = world.reports.lock().last().cloned() else {
        panic!("not degraded")
    };
    assert_eq!(message, "11 error(s)");
    assert_eq!((errors.lines().count(), errors.lines().last()), (11, Some("1 further errors omitted")));
    world.target.heal();
    pass(Duration::from_secs(1)).await;
    assert!(world.target.rows().is_empty());
}

#[tokio::test(start_paused = true)]
async fn writes_during_a_round_are_reconciled_after_it() {
    let mut world = World::new();
    let slow = SlowTarget(world.target.clone());
    let handle = world.run(world.builder().async_ops(slow).prune(Duration::ZERO));
    world.target.set(1, Fault::Slow(Duration::from_secs(5)));
    world.put([1, 2, 3]);
    pass(Duration::from_secs(1)).await; // the round has read its changes
    let (_, snapshot) = world.routes.transact(|w| {
        w.insert(route(2, "b")); // to be overwritten
        w.delete(Query::primary(3u32));
        w.insert(route(4, "b"));
        w.update(Query::primary(1u32), |route| route.other = Status::done()); // another field
    });
    let revision = world.routes.revision(&snapshot);
    handle.wait_until_ok(revision).await.unwrap();
    let rows = world.target.0.lock().rows.clone();
    assert_eq!(
        rows.into_iter().collect::<Vec<_>>(),
        [(1, "a"), (2, "b"), (4, "b")].map(|(id, via)| (id, via.to_owned()))
    );
    assert!([1, 2, 4].into_iter().all(|id| world.get(id).status.is_done()));
    let log = world.target.take_log();
    assert_eq!(
        log.iter().filter(|line| *line == "update 1").count(),
        1,
        "the other field does not count: {log:?}"
    );
    assert_eq!(log.iter().filter(|line| *line == "update 2").count(), 2, "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn an_aborted_transaction_does_nothing() {
    let mut world = World::new();
    let handle = world.run(world.builder().prune(Duration::ZERO));
    let revision = world.put([1]);
    handle.wait_until_ok(revision).await.unwrap();
    world.target.take_log();
    let before = handle.progress();
    {
        let mut w = world.routes.write();
        w.insert(route(2, "a"));
        w.delete(Query::primary(1u32));
    }
    pass(Duration::from_secs(5)).await;
    assert_eq!((world.target.take_log().len(), handle.progress()), (0, before));
    assert!(world.get(1).status.is_done());
}

#[tokio::test(start_paused = true)]
async fn own_status_writes_are_not_read_again() {
    let mut world = World::new();
    let handle = world.run(world.builder().round(10, 1000, 100).prune(Duration::ZERO));
    let revision = world.put(1..=100);
    handle.wait_until_ok(revision).await.unwrap();
    pass(MS).await;
    assert_eq!(handle.metrics().rounds.value(), 10, "each full of status writes of other reconcilers");
    let all = world.routes.revision(&world.routes.snapshot());
    assert_eq!((all, handle.progress().attempted), (200, 200));
}

/// An object with a `StatusSet`, shared by its reconcilers.
#[derive(Clone, Debug, Serialize)]
struct Node {
    id: u32,
    statuses: StatusSet,
}

impl TableSpec for Node {
    const NAME: &'static str = "nodes";
    type Key<'a> = u32;

    fn key(&self) -> u32 {
        self.id
    }
}

impl TableDisplay for Node {
    fn columns() -> &'static [&'static str] {
        &["ID", "Statuses"]
    }

    fn row(&self) -> Vec<String> {
        vec![self.id.to_string(), self.statuses.to_string()]
    }
}

/// Operations with a delay and a result.
struct After(Duration, Result<(), &'static str>);

impl reconciler::AsyncOps<Node> for After {
    fn update<'a>(
        &'a mut self,
        _: &'a reconciler::OpCx<'a>,
        _: &'a mut Node,
    ) -> futures::future::BoxFuture<'a, reconciler::OpResult> {
        let After(time, result) = *self;
        Box::pin(async move {
            tokio::time::sleep(time).await;
            Ok(result?)
        })
    }

    fn delete<'a>(
        &'a mut self,
        _: &'a reconciler::OpCx<'a>,
        _: &'a Node,
    ) -> futures::future::BoxFuture<'a, reconciler::OpResult> {
        Box::pin(async { Ok(()) })
    }

    fn prune<'a>(
        &'a mut self,
        _: &'a reconciler::OpCx<'a>,
        _: Vec<Obj<Node>>,
    ) -> futures::future::BoxFuture<'a, reconciler::OpResult> {
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_races_with_another_status_is_retried() {
    let nodes: RwTable<Node> = Db::new().table().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    // Both start with the same version of the object; the succeeding one writes its status first.
    let mut run = |name: &'static str, ops: After| {
        let (handle, reconciler) = Reconciler::builder(nodes.clone())
            .name(name)
            .status_value(
                |node: &Node| node.statuses.get(name),
                |node, status| node.statuses.set(name, status),
            )
            .async_ops(ops)
            .shared()
            .build();
        tasks.spawn(reconciler.run());
        handle
    };
    let good = run("good", After(MS, Ok(())));
    let bad = run("bad", After(50 * MS, Err("fail")));
    let statuses = StatusSet::requiring(["good", "bad"]);
    let (_, snapshot) = nodes.transact(|w| drop(w.insert(Node { id: 1, statuses })));
    let revision = nodes.revision(&snapshot);
    good.wait_until_ok(revision).await.unwrap();
    bad.wait_until(revision).await.unwrap();
    let statuses =
        nodes.wait_for(Query::primary(1u32), |node| !node.statuses.is_pending()).await.statuses.clone();
    assert!(statuses.get("good").is_done() && !statuses.is_done());
    assert!(statuses.to_string().starts_with("Errored: bad (fail), Done: good ("), "{statuses}");
    let counts = || {
        (bad.metrics().objects.value(), bad.metrics().errors.value(), bad.metrics().errors_current.value())
    };
    assert_eq!(counts(), (1, 1, 1));
    pass(300 * MS).await;
    assert_eq!(counts(), (2, 2, 1), "it is tried again after 200 ms");
    assert_eq!(good.metrics().objects.value(), 1, "and the other one is not");
    assert!(!bad.progress().is_ok(revision) && good.progress().is_ok(revision));
    // The rows that a prune gets; their content does not matter here.
    let _: Rows<'_, Node> = nodes.all(&snapshot);
}
