//! Targets that fail, panic, are slow or hang, in each operation: health says so, nothing is lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

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
        None => assert!(handle.progress().is_ok(revision) == matches!(mood, Mood::Slow(_)), "{op}"),
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
}

fn hive_of(target: &Target) -> TestHive {
    let target = target.clone();
    let start = move |table: Arc<RwTable<Route>>, jobs: JobGroup| -> Arc<Handle> {
        let builder = Reconciler::builder((*table).clone())
            .status(|route: &Route| &route.status, |route, status| route.status = status);
        Arc::new(builder.async_ops(SlowTarget(target.clone())).spawn(&jobs))
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

#[tokio::test(start_paused = true)]
async fn a_hanging_target_is_named_and_does_not_hold_up_the_stop() {
    let target = Target::default();
    let mut hive = hive_of(&target);
    hive.start().await;
    pass(SECOND).await;
    assert!(named(&hive).is_empty(), "{:?}", named(&hive));
    target.set(1, Mood::Hang);
    let table = hive.get::<RwTable<Route>>();
    table.transact(|w| drop(w.insert(route(1, "a"))));
    pass(SECOND).await;
    let named = named(&hive);
    assert!(named.iter().any(|job| job.contains("reconcile")), "{named:?}");
    let begin = tokio::time::Instant::now();
    hive.stop().await;
    assert!(begin.elapsed() < SECOND, "{:?}", begin.elapsed());
}
