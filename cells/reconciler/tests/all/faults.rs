//! Targets that fail, panic, are slow or hang, in each operation: health says so, nothing is lost.

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

/// The target comes to be like the table after a while in which one operation is in a mood.
async fn recovers(mood: Mood, op: &str, told: Option<&str>) {
    let mut world = World::new();
    let slow = SlowTarget(world.target.clone());
    let builder = world.builder().prune(60 * SECOND).refresh(Duration::ZERO, 1);
    let handle = match mood {
        Mood::Fail | Mood::Panic => world.run(builder),
        Mood::Slow(_) | Mood::Hang => world.run(builder.async_ops(slow)),
    };
    let first = world.put([1, 2, 3]);
    handle.wait_until_ok(first).await.unwrap();
    pass(SECOND).await;
    world.target.0.lock().rows.insert(9, "left over".into());
    match op {
        "prune" => {
            let mut state = world.target.0.lock();
            (state.prune_fails, state.prune_mood) = (mood == Mood::Fail, Some(mood));
        }
        _ => world.target.set(2, mood),
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
    match told {
        Some(error) => assert_eq!(world.reports.lock().last(), Some(&degraded(1, error)), "{op}"),
        // Rows written before a prune do not wait for it.
        None => {
            let is_ok = matches!(mood, Mood::Slow(_)) || op == "prune";
            assert_eq!(handle.progress().is_ok(revision), is_ok, "{op}");
        }
    }
    world.target.heal();
    handle.wait_until_ok(revision).await.unwrap();
    pass(70 * SECOND).await;
    let wanted: &[u32] = if op == "delete" { &[1, 3, 4] } else { &[1, 2, 3, 4] };
    assert_eq!(world.target.rows(), wanted, "{mood:?} {op}: nothing lost, what is left over pruned");
    let objects = wanted.len();
    assert_eq!(world.reports.lock().last(), Some(&Report::Ok(format!("OK, {objects} object(s)"))));
}

#[tokio::test(start_paused = true)]
async fn a_failing_target_is_told_and_tried_again() {
    recovers(Mood::Fail, "update", Some("update of 2 refused")).await;
    recovers(Mood::Fail, "delete", Some("delete of 2 refused")).await;
    recovers(Mood::Fail, "prune", Some("prune: prune refused")).await;
}

#[tokio::test(start_paused = true)]
async fn a_panicking_target_is_told_and_tried_again() {
    recovers(Mood::Panic, "update", Some("panicked: update of 2 exploded")).await;
    recovers(Mood::Panic, "delete", Some("panicked: delete of 2 exploded")).await;
    recovers(Mood::Panic, "prune", Some("prune: panicked: prune exploded")).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_target_is_waited_for() {
    for op in ["update", "delete"] {
        recovers(Mood::Slow(30 * SECOND), op, None).await;
    }
    recovers(Mood::Slow(5 * SECOND), "prune", None).await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_target_loses_nothing() {
    recovers(Mood::Hang, "update", None).await;
    recovers(Mood::Hang, "delete", None).await;
    recovers(Mood::Hang, "prune", None).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_written_while_a_prune_hangs_comes_after_it() {
    let mut world = World::new();
    world.target.0.lock().prune_mood = Some(Mood::Hang);
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

/// What the watchdog names in the next two minutes of a clock that only it looks at.
fn named(hive: &TestHive) -> Vec<String> {
    let mut watchdog = Watchdog::new(hive.hive().jobs().clone(), 60 * SECOND);
    let start = Instant::now();
    let stuck = (0..120).flat_map(|second| watchdog.sample(start + second * SECOND));
    let mut named: Vec<_> = stuck.map(|stuck| stuck.job).collect();
    named.dedup();
    named
}

/// Ends the mood of a target, also when a test fails: the end of a runtime waits for its threads.
struct Healed(Target);

impl Drop for Healed {
    fn drop(&mut self) {
        self.0.heal();
    }
}

/// An operation that never returns: the watchdog names the job, and the stop waits no longer than it has to: not at all, or
/// for a thread that cannot be asked to end, the grace of a job, and says that it is left.
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
        target.0.lock().prune_mood = Some(Mood::Hang);
        handle.prune();
    } else {
        target.set(1, Mood::Hang);
        table.transact(|w| w.insert(route(1, "b")));
    }
    // The runtime goes on meanwhile.
    pass(100 * MS).await;
    let named = named(&hive);
    assert!(named.iter().any(|job| job.contains("reconcile")), "{place:?} {op}: {named:?}");
    let begin = tokio::time::Instant::now();
    let stopped = AssertUnwindSafe(hive.stop()).catch_unwind().await;
    let left = match stopped {
        Ok(_) => String::new(),
        Err(panic) => *panic.downcast::<String>().expect("what is left"),
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
async fn a_hanging_target_is_named_and_does_not_hold_up_the_stop() {
    hangs(Where::Await, "update").await;
    hangs(Where::Await, "prune").await;
}

#[tokio::test]
async fn a_hanging_target_on_a_blocking_thread_is_named_and_holds_up_the_stop_for_its_grace() {
    tokio::join!(hangs(Where::BlockingThread, "update"), hangs(Where::BlockingThread, "prune"));
}
