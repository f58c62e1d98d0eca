//! Updates, deletes, failures, retries.

use std::time::Duration;

use reconciler::{Report, Status, StatusKind};
use statedb::Query;

use crate::world::*;

#[tokio::test(start_paused = true)]
async fn pending_objects_reach_the_target_and_are_done() {
    let mut world = World::new();
    world.put([1]);
    let handle = world.run(world.builder());
    let revision = world.put([2, 3]);
    handle.wait_until_ok(revision).await.unwrap();
    assert_eq!(world.target.rows(), [1, 2, 3]);
    let done = world.get(2);
    assert!(done.status.is_done());
    assert_eq!(done.handle, 1002, "fields that the operation sets are stored");
    let revision = world.delete(2);
    handle.wait_until_ok(revision).await.unwrap();
    assert_eq!(world.target.rows(), [1, 3]);
    pass(10 * MS).await;
    assert_eq!(world.reports.lock().last(), Some(&Report::Ok("OK, 2 object(s)".into())));
    assert_eq!(handle.metrics().objects.value(), 4);
}

#[tokio::test(start_paused = true)]
async fn only_pending_and_refreshing_objects_are_touched() {
    let mut world = World::new();
    world.routes.transact(|w| {
        w.insert(reconciled(1, Status::done()));
        w.insert(reconciled(2, Status::failed("of another writer")));
        w.insert(reconciled(3, Status::refreshing()));
    });
    let handle = world.run(world.builder().prune(Duration::ZERO));
    handle.wait_until(3).await.unwrap();
    pass(Duration::from_secs(300)).await;
    assert_eq!(world.target.take_log(), ["update 3"]);
    assert_eq!(world.get(2).status.kind(), StatusKind::Error);
}

fn reconciled(id: u32, status: Status) -> Route {
    Route { status, ..route(id, "a") }
}

#[tokio::test(start_paused = true)]
async fn failures_are_retried_after_200_then_400_ms_until_success() {
    let mut world = World::new();
    let handle = world.run(world.builder().prune(Duration::ZERO));
    world.target.set(1, Fault::Fail);
    world.put([1, 2]);
    pass(150 * MS).await;
    assert_eq!(world.target.take_log(), ["update 1", "update 2"]);
    let failed = world.get(1).status;
    assert_eq!((failed.kind(), failed.error()), (StatusKind::Error, Some("update of 1 refused")));
    assert_eq!(world.reports.lock().last(), Some(&degraded(1, "update of 1 refused")));
    assert_eq!(handle.metrics().errors_current.value(), 1);
    pass(100 * MS).await; // 250 ms
    assert_eq!(world.target.take_log(), ["update 1"]);
    pass(300 * MS).await; // 550 ms
    assert!(world.target.take_log().is_empty());
    world.target.heal();
    pass(100 * MS).await; // 650 ms, the second retry is due at 600 ms
    assert_eq!(world.target.take_log(), ["update 1"]);
    assert!(world.get(1).status.is_done());
    assert_eq!(handle.metrics().errors_current.value(), 0);
    assert_eq!(world.reports.lock().last(), Some(&Report::Ok("OK, 2 object(s)".into())));
    pass(Duration::from_secs(120)).await;
    assert!(world.target.take_log().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_an_error_of_its_object_only() {
    let mut world = World::new();
    let handle = world.run(world.builder());
    world.target.set(2, Fault::Panic);
    let revision = world.put([1, 2, 3]);
    let progress = handle.wait_until(revision).await.unwrap();
    assert_eq!(progress.failing_since, Some(2));
    assert_eq!(world.target.rows(), [1, 3]);
    assert_eq!(world.get(2).status.error(), Some("panicked: update of 2 exploded"));
    world.target.heal();
    handle.wait_until_ok(revision).await.unwrap();
    assert_eq!(world.target.rows(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn failed_deletes_are_retried_unless_the_object_is_inserted_again() {
    let mut world = World::new();
    let handle = world.run(world.builder().prune(Duration::ZERO));
    let revision = world.put([1, 2]);
    handle.wait_until_ok(revision).await.unwrap();
    world.target.take_log();
    world.target.set(1, Fault::Fail);
    world.target.set(2, Fault::Fail);
    world.delete(1);
    let deleted = world.delete(2);
    let progress = handle.wait_until(deleted).await.unwrap();
    assert!(progress.failing_since.is_some());
    assert_eq!(world.target.take_log(), ["delete 1", "delete 2"]);
    world.target.heal();
    world.put([2]); // a delete of the old one must not follow the update of the new one
    handle.wait_until_ok(deleted).await.unwrap();
    pass(Duration::from_secs(120)).await;
    assert_eq!(world.target.take_log(), ["update 2", "delete 1"]);
    assert_eq!(world.target.rows(), [2]);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_a_failing_object_resets_its_backoff() {
    let mut world = World::new();
    let handle = world.run(world.builder().prune(Duration::ZERO));
    world.target.set(1, Fault::Fail);
    world.put([1]);
    pass(Duration::from_secs(20)).await; // the wait has grown to some 10 s
    world.target.heal();
    world.target.take_log();
    let revision = world.put([1]);
    let progress = handle.wait_until_ok(revision).await.unwrap();
    assert_eq!(progress.failing_since, None);
    pass(Duration::from_secs(60)).await;
    assert_eq!(world.target.take_log(), ["update 1"], "no retry of the old one");
    world.target.set(1, Fault::Fail);
    world.put([1]);
    pass(10 * MS).await;
    world.delete(1);
    world.target.heal();
    pass(Duration::from_secs(60)).await;
    assert_eq!(world.target.take_log(), ["update 1", "delete 1"], "no retry of a deleted object");
}

#[tokio::test(start_paused = true)]
async fn batches_delete_first_and_retry_one_by_one() {
    let mut world = World::new();
    let handle =
        world.run(world.builder().batch_ops(world.target.clone()).round(10, 1000, 1).prune(Duration::ZERO));
    let revision = world.put(1..=25);
    handle.wait_until_ok(revision).await.unwrap();
    let log = world.target.take_log();
    let batches: Vec<_> = log.iter().filter(|line| line.starts_with("updates")).cloned().collect();
    assert_eq!(batches.iter().map(|line| line[8..].parse::<u32>().unwrap()).sum::<u32>(), 25);
    assert!(batches.len() >= 3 && batches.contains(&"updates 10".to_owned()), "{batches:?}");
    world.target.set(4, Fault::Fail);
    world.routes.transact(|w| {
        w.insert(route(4, "b"));
        w.delete(Query::primary(5u32));
    });
    pass(100 * MS).await;
    assert_eq!(world.target.take_log(), ["deletes 1", "delete 5", "updates 1", "update 4"]);
    pass(150 * MS).await;
    assert_eq!(world.target.take_log(), ["update 4"], "the retry");
    world.target.heal();
    world.target.set(7, Fault::Panic);
    let revision = world.put([6, 7]);
    handle.wait_until(revision).await.unwrap();
    assert_eq!(world.get(6).status.error(), Some("panicked: update of 7 exploded"), "the whole batch");
    pass(300 * MS).await;
    assert!(world.get(6).status.is_done(), "alone it succeeds");
    assert_eq!(world.get(7).status.kind(), StatusKind::Error);
}

#[tokio::test(start_paused = true)]
async fn a_write_during_a_slow_operation_is_kept_and_reconciled() {
    let mut world = World::new();
    world.target.set(1, Fault::Slow(Duration::from_secs(5)));
    let slow = SlowTarget(world.target.clone());
    let handle = world.run(world.builder().async_ops(slow));
    world.put([1]);
    pass(Duration::from_secs(1)).await;
    let (_, snapshot) = world.routes.transact(|w| w.insert(route(1, "b")));
    let revision = world.routes.revision(&snapshot);
    pass(Duration::from_secs(5)).await;
    let now = world.get(1);
    assert_eq!((now.via.as_str(), now.status.is_pending()), ("b", true), "the result was of another object");
    handle.wait_until_ok(revision).await.unwrap();
    assert_eq!(world.get(1).via, "b");
    assert!(world.get(1).status.is_done());
    assert_eq!(world.target.0.lock().rows[&1], "b");
}

#[tokio::test(start_paused = true)]
async fn a_delete_during_a_slow_operation_follows_it() {
    let mut world = World::new();
    world.target.set(1, Fault::Slow(Duration::from_secs(5)));
    let slow = SlowTarget(world.target.clone());
    let handle = world.run(world.builder().async_ops(slow));
    world.put([1]);
    pass(Duration::from_secs(1)).await;
    let revision = world.delete(1);
    handle.wait_until_ok(revision).await.unwrap();
    assert!(world.target.rows().is_empty());
}
