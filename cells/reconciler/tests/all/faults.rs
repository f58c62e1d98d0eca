//! Targets that fail, panic, are slow or hang, in each operation: health reports it, and no change is lost.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use hive::job::Watchdog;
use hive::prelude::*;
use reconciler::{Handle, Reconciler, Report};
use statedb::{Query, RwTable};

use crate::world::*;

const SECOND: Duration = Duration::from_secs(1);

/// Asserts that the target converges to the table after a time in which one operation has a fault.
async fn recovers(fault: Fault, op: &str, reported: Option<&str>) {
    let mut world = World::new();
    let slow = SlowTarget(world.target.clone());
    let builder = world.builder().prune(60 * SECOND).refresh(Duration::ZERO, 1);
    let handle = match fault {
        Fault::Fail | Fault::Panic => world.run(builder),
        Fault::Slow(_) | Fault::Hang => world.run(builder.async_ops(slow)),
    };
    let first = world.put([1, 2, 3]);
    handle.wait_until_ok(first).await.unwrap();
    pass(SECOND).await;
    world.target.0.lock().rows.insert(9, "left over".into());
    match op {
        "prune" => {
            let mut state = world.target.0.lock();
            (state.prune_fails, state.prune_fault) = (fault == Fault::Fail, Some(fault));
        }
        _ => world.target.set(2, fault),
    }
    let (_, snapshot) = world.routes.transact(|w| {
        if op == "delete" {
            w.delete(Query::primary(2u32));
        } else {
            w.insert(route(2, "b"));
        }
        w.insert(route(4, "b"));
    });
    let revision = world.routes.revision(&snapshot);
    pass(70 * SECOND).await;
    match reported {
        Some(error) => assert_eq!(world.reports.lock().last(), Some(&degraded(1, error)), "{op}"),
        // Rows that were written before the prune are reconciled before it.
        None => {
            let is_ok = matches!(fault, Fault::Slow(_)) || op == "prune";
            assert_eq!(handle.progress().is_ok(revision), is_ok, "{op}");
        }
    }
    world.target.heal();
    handle.wait_until_ok(revision).await.unwrap();
    pass(70 * SECOND).await;
    let wanted: &[u32] = if op == "delete" { &[1, 3, 4] } else { &[1, 2, 3, 4] };
    assert_eq!(world.target.rows(), wanted, "{fault:?} {op}: no change lost, the unknown object pruned");
    let objects = wanted.len();
    assert_eq!(world.reports.lock().last(), Some(&Report::Ok(format!("OK, {objects} object(s)"))));
}

#[tokio::test(start_paused = true)]
async fn a_failing_target_is_reported_and_retried() {
    recovers(Fault::Fail, "update", Some("update of 2 refused")).await;
    recovers(Fault::Fail, "delete", Some("delete of 2 refused")).await;
    recovers(Fault::Fail, "prune", Some("prune: prune refused")).await;
}

#[tokio::test(start_paused = true)]
async fn a_panicking_target_is_reported_and_retried() {
    recovers(Fault::Panic, "update", Some("panicked: update of 2 exploded")).await;
    recovers(Fault::Panic, "delete", Some("panicked: delete of 2 exploded")).await;
    recovers(Fault::Panic, "prune", Some("prune: panicked: prune exploded")).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_target_converges() {
    for op in ["update", "delete"] {
        recovers(Fault::Slow(30 * SECOND), op, None).await;
    }
    recovers(Fault::Slow(5 * SECOND), "prune", None).await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_target_loses_nothing() {
    recovers(Fault::Hang, "update", None).await;
    recovers(Fault::Hang, "delete", None).await;
    recovers(Fault::Hang, "prune", None).await;
}

#[tokio::test(start_paused = true)]
async fn writes_during_a_hanging_prune_are_reconciled_after_it() {
    let mut world = World::new();
    world.target.0.lock().prune_fault = Some(Fault::Hang);
    let builder = world.builder().async_ops(SlowTarget(world.target.clone()));
    let handle = world.run(builder);
    pass(SECOND).await;
    let revision = world.put([1]);
    pass(70 * SECOND).await;
    assert_eq!(world.target.take_log(), ["prune"]);
    assert!(!handle.progress().is_ok(revision));
    world.target.heal();
    handle.wait_until_ok(revision).await.unwrap();
    assert_eq!(world.target.rows(), [1]);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    Await,
    BlockingThread,
}

fn hive_of(target: &Target, place: Where) -> TestHive {
    let target = target.clone();
    let start = move |table: Arc<RwTable<Route>>, jobs: JobGroup| -> Arc<Handle> {
        let builder = Reconciler::builder((*table).clone())
            .status(|route: &Route| &route.status, |route, status| route.status = status);
        let builder = match place {
            Where::Await => builder.async_ops(SlowTarget(target.clone())),
            Where::BlockingThread => builder.ops(target.clone()).blocking(),
        };
        Arc::new(builder.spawn(&jobs))
    };
    let routes = module("routes", "Routes of the kernel", [statedb::table::<Route>(), provide(start)]);
    TestHive::new([statedb::cell(), routes, invoke(|_: Arc<Handle>| ())])
}

/// Returns the jobs that the watchdog reports in the next two minutes of its own clock.
fn named(hive: &TestHive) -> Vec<String> {
    let mut watchdog = Watchdog::new(hive.hive().jobs().clone(), 60 * SECOND);
    let start = Instant::now();
    let stuck = (0..120).flat_map(|second| watchdog.sample(start + second * SECOND));
    let mut named: Vec<_> = stuck.map(|stuck| stuck.job).collect();
    named.dedup();
    named
}

/// Clears the faults of a target on drop, also when a test fails: the drop of a runtime waits for blocked threads.
struct Healed(Target);

impl Drop for Healed {
    fn drop(&mut self) {
        self.0.heal();
    }
}

/// Asserts that the watchdog reports the job of an operation that never returns, and that the stop does not wait for a
/// future, and for a blocked thread only for the grace period of a job, after which it reports the thread as left.
async fn hangs(place: Where, op: &str) {
    let target = Target::default();
    let _healed = Healed(target.clone());
    let mut hive = hive_of(&target, place);
    hive.start().await;
    let handle = hive.get::<Handle>();
    let table = hive.get::<RwTable<Route>>();
    let (_, snapshot) = table.transact(|w| w.insert(route(1, "a")));
    handle.wait_until_ok(table.revision(&snapshot)).await.unwrap();
    pass(100 * MS).await;
    assert!(named(&hive).is_empty(), "{:?}", named(&hive));
    target.take_log();
    if op == "prune" {
        target.0.lock().prune_fault = Some(Fault::Hang);
        handle.prune();
    } else {
        target.set(1, Fault::Hang);
        table.transact(|w| w.insert(route(1, "b")));
    }
    // The runtime is not blocked meanwhile.
    pass(100 * MS).await;
    let named = named(&hive);
    assert!(named.iter().any(|job| job.contains("reconcile")), "{place:?} {op}: {named:?}");
    let begin = tokio::time::Instant::now();
    let stopped = AssertUnwindSafe(hive.stop()).catch_unwind().await;
    let left = match stopped {
        Ok(_) => String::new(),
        Err(panic) => *panic.downcast::<String>().expect("a message"),
    };
    assert_eq!(
        left.contains("job `job-reconcile`"),
        place == Where::BlockingThread,
        "{place:?} {op}: {left}"
    );
    let (grace, took) = (if place == Where::Await { 0 } else { 5 } * SECOND, begin.elapsed());
    assert!((grace..grace + SECOND).contains(&took), "{place:?} {op}: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hanging_target_is_reported_and_does_not_delay_the_stop() {
    hangs(Where::Await, "update").await;
    hangs(Where::Await, "prune").await;
}

#[tokio::test]
async fn a_hanging_target_on_a_blocking_thread_is_reported_and_delays_the_stop_by_the_grace_period() {
    tokio::join!(hangs(Where::BlockingThread, "update"), hangs(Where::BlockingThread, "prune"));
}
