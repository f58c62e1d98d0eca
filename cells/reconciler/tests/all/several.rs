//! Several reconcilers of one table do not lose each other's results.

use std::time::Duration;

use reconciler::{Handle, Reconciler, Status, StatusKind};

use crate::world::*;

/// Starts a second reconciler on `other`, with its own target.
fn second(world: &mut World) -> (Target, Handle) {
    let target = Target::default();
    let builder = Reconciler::builder(world.routes.clone())
        .name("other")
        .status(|route: &Route| &route.other, |route, status| route.other = status)
        .ops(target.clone())
        .merge(|current, reconciled| current.handle = reconciled.handle);
    let handle = world.run(builder);
    (target, handle)
}

fn both_pending(id: u32) -> Route {
    Route { other: Status::pending(), ..route(id, "a") }
}

#[tokio::test(start_paused = true)]
async fn both_statuses_become_done_with_one_operation_each() {
    let mut world = World::new();
    let first = world.run(world.builder());
    let (other, second) = second(&mut world);
    let (_, snapshot) = world.routes.transact(|w| (1..=50).for_each(|id| drop(w.insert(both_pending(id)))));
    let revision = world.routes.revision(&snapshot);
    first.wait_until_ok(revision).await.unwrap();
    second.wait_until_ok(revision).await.unwrap();
    pass(10 * MS).await;
    for id in 1..=50 {
        let route = world.get(id);
        assert!(route.status.is_done() && route.other.is_done(), "{route:?}");
    }
    assert_eq!((first.metrics().objects.value(), second.metrics().objects.value()), (50, 50));
    assert_eq!(other.rows().len(), 50);
}

#[tokio::test(start_paused = true)]
async fn a_slow_reconciler_keeps_the_others_status_and_stored_fields() {
    let mut world = World::new();
    world.target.set(1, Fault::Slow(Duration::from_secs(5)));
    let slow = SlowTarget(world.target.clone());
    let merging =
        world.builder().async_ops(slow).merge(|current, reconciled| current.handle = reconciled.handle);
    let first = world.run(merging);
    let (_, second) = second(&mut world);
    let (_, snapshot) = world.routes.transact(|w| w.insert(Route { handle: 7, ..both_pending(1) }));
    let revision = world.routes.revision(&snapshot);
    second.wait_until_ok(revision).await.unwrap();
    assert!(world.get(1).other.is_done() && world.get(1).status.is_pending());
    first.wait_until_ok(revision).await.unwrap();
    let route = world.get(1);
    assert!(route.status.is_done() && route.other.is_done());
    assert_eq!(route.handle, 1001);
}

#[tokio::test(start_paused = true)]
async fn a_failing_reconciler_is_retried_although_the_other_keeps_writing() {
    let mut world = World::new();
    world.target.set(1, Fault::Fail);
    let slow = SlowTarget(world.target.clone());
    let first = world.run(world.builder().async_ops(slow).prune(Duration::ZERO).shared());
    let (_, second) = second(&mut world);
    let (_, snapshot) = world.routes.transact(|w| w.insert(both_pending(1)));
    let revision = world.routes.revision(&snapshot);
    second.wait_until_ok(revision).await.unwrap();
    world.target.set(1, Fault::Slow(150 * MS)); // the other one writes during the retry
    pass(250 * MS).await;
    let (_, _) = world.routes.transact(|w| {
        w.update(statedb::Query::primary(1u32), |route| route.other = Status::pending());
    });
    assert_eq!(world.get(1).status.kind(), StatusKind::Error);
    first.wait_until_ok(revision).await.unwrap();
    assert!(world.get(1).status.is_done(), "{:?}", world.get(1));
    pass(10 * MS).await;
    assert!(world.get(1).other.is_done());
}
