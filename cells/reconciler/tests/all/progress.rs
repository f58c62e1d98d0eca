//! Waits for a revision.

use std::time::{Duration, Instant};

use reconciler::Stopped;

use crate::world::*;

#[tokio::test(start_paused = true)]
async fn waits_end_with_the_attempt_or_with_success() {
    let mut world = World::new();
    world.target.set(2, Fault::Fail);
    let handle = world.run(world.builder());
    let first = world.put([1]);
    let second = world.put([2]);
    assert!(handle.wait_until(first).await.unwrap().is_ok(first));
    let progress = handle.wait_until(second).await.unwrap();
    assert!(progress.is_ok(first) && !progress.is_ok(second));
    let never = tokio::time::timeout(Duration::from_secs(600), handle.wait_until_ok(second)).await;
    assert!(never.is_err());
    world.target.heal();
    handle.wait_until_ok(second).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_stopped_reconciler_is_an_error() {
    let mut world = World::new();
    let handle = world.run(world.builder());
    let stop = async {
        pass(10 * MS).await;
        world.stop();
    };
    let (waited, ()) = tokio::join!(handle.wait_until(100), stop);
    assert_eq!(waited, Err(Stopped));
}

#[tokio::test(start_paused = true)]
async fn rounds_are_limited_but_a_lone_change_is_not_delayed() {
    let mut world = World::new();
    let handle = world.run(world.builder().round(1, 100, 5).prune(Duration::ZERO));
    pass(Duration::from_secs(1)).await;
    let start = tokio::time::Instant::now();
    let revision = world.put([1]);
    handle.wait_until_ok(revision).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    pass(Duration::from_secs(1)).await;
    let start = tokio::time::Instant::now();
    let revision = world.put(1..=25);
    handle.wait_until_ok(revision).await.unwrap();
    let took = start.elapsed();
    assert!((190 * MS..=220 * MS).contains(&took), "5 at once, 20 at 10 ms: {took:?}");
}

#[tokio::test]
async fn blocking_operations_do_not_block_the_runtime() {
    let mut world = World::new();
    let handle = world.run(world.builder().blocking());
    world.target.set(3, Fault::Panic);
    let revision = world.put([1, 2, 3]);
    let progress = handle.wait_until(revision).await.unwrap();
    assert_eq!(progress.failing_since, Some(3));
    assert_eq!(world.target.rows(), [1, 2]);
    assert!(world.get(1).status.is_done());
    world.target.0.lock().rows.insert(9, "left over".into());
    handle.prune();
    let revision = world.delete(1);
    handle.wait_until(revision).await.unwrap();
    let start = Instant::now();
    while world.target.rows() != [2] && start.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(MS).await;
    }
    assert_eq!(world.target.rows(), [2]);
}
