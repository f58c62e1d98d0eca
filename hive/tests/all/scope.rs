//! Scopes with a lifecycle of their own: started and stopped while the hive runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hive::prelude::*;
use hive::{Event, HiveError, State};
use parking_lot::Mutex;
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

type Log = Arc<Mutex<Vec<String>>>;

struct Leader;

/// An object of the surrounding hive.
#[derive(Object)]
struct Store(AtomicU32);

/// An object of the scope, created at each start.
#[derive(Object)]
struct Lease(u32);

fn hook(lifecycle: &Lifecycle, log: &Log, name: String) {
    let (start, stop) = (log.clone(), log.clone());
    let (starts, stops) = (format!("start {name}"), format!("stop {name}"));
    let starting = move |_| async move {
        start.lock().push(starts);
        Ok(())
    };
    let stopping = move |_| async move {
        stop.lock().push(stops);
        Ok(())
    };
    lifecycle.hook(name).on_start(starting).on_stop(stopping).add();
}

/// Returns a hive with a store and a scope whose second constructor and job use the scope's own lease.
fn cells(log: &Log, fails: Arc<Mutex<Option<&'static str>>>) -> Vec<Cell> {
    let (outer, inner, jobs_log) = (log.clone(), log.clone(), log.clone());
    let new_store = move |lifecycle: Lifecycle| {
        hook(&lifecycle, &outer, "store".to_owned());
        Store(AtomicU32::new(0))
    };
    let new_lease = |store: Arc<Store>| Lease(store.0.fetch_add(1, Ordering::Relaxed) + 1);
    let lead = move |lease: Arc<Lease>, lifecycle: Lifecycle, jobs: JobGroup, health: Health| {
        hook(&lifecycle, &inner, format!("lease {}", lease.0));
        let (log, number, fails) = (jobs_log.clone(), lease.0, fails.clone());
        jobs.one_shot("leads", move |cx: JobCx| async move {
            let _lease = lease;
            log.lock().push(format!("job {number}"));
            cx.cancelled().await;
            Ok(())
        })
        .add();
        lifecycle
            .hook("last")
            .on_start(move |_| async move {
                let fails = *fails.lock();
                match fails {
                    Some("error") => anyhow::bail!("no quorum"),
                    Some("panic") => panic!("index out of bounds"),
                    Some(_) => std::future::pending().await,
                    None => {}
                }
                health.ok("leading");
                Ok(())
            })
            .add();
    };
    vec![
        module("store", "x", provide(new_store)),
        scope::<Leader>("leader", "Only the leader", [provide(new_lease), invoke(lead)]),
        invoke(|_: Arc<Scope<Leader>>, _: Arc<Store>| ()),
    ]
}

async fn started(log: &Log) -> (TestHive, Arc<Scope<Leader>>) {
    let mut hive = TestHive::new(cells(log, Arc::default()));
    hive.start().await;
    let scope = hive.get::<Scope<Leader>>();
    (hive, scope)
}

#[tokio::test(start_paused = true)]
async fn starts_and_stops_repeatedly_while_the_hive_runs() {
    let log = Log::default();
    let (mut hive, leader) = started(&log).await;
    assert_eq!((leader.state(), log.lock().clone()), (State::Built, vec!["start store".to_owned()]));
    for number in [1, 2] {
        log.lock().clear();
        leader.start().await.unwrap();
        sleep(SECOND).await;
        assert_eq!(leader.state(), State::Started);
        assert_eq!(hive.health("leader").message, "leading");
        assert_eq!(hive.health("leader.scope").message, "Started");
        assert_eq!(hive.health("leader.job-leads").message, "Running");
        leader.stop().await.unwrap();
        assert_eq!(leader.state(), State::Stopped);
        let story = ["start lease N", "job N", "stop lease N"];
        assert_eq!(*log.lock(), story.map(|line| line.replace('N', &number.to_string())));
        let left: Vec<_> = leader.health().iter().map(|status| (status.path(), status.level)).collect();
        assert_eq!(left, [("leader.scope".to_owned(), Level::Stopped)]);
    }
    assert_eq!(hive.hive().state(), State::Started);
    hive.stop().await;
    assert_eq!(log.lock().last().unwrap(), "stop store");
}

#[tokio::test(start_paused = true)]
async fn a_running_scope_is_stopped_before_its_dependencies() {
    let log = Log::default();
    let (mut hive, leader) = started(&log).await;
    leader.start().await.unwrap();
    sleep(SECOND).await;
    hive.stop().await;
    let log = log.lock().clone();
    assert_eq!(log, ["start store", "start lease 1", "job 1", "stop lease 1", "stop store"]);
    assert_eq!(leader.state(), State::Stopped);
    let refused = leader.start().await.unwrap_err().to_string();
    assert_eq!(refused, "scope `leader`: cannot start a scope that is stopping");
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_is_rolled_back_and_may_be_retried() {
    let (log, fails) = (Log::default(), Arc::new(Mutex::new(Some("error"))));
    let mut hive = TestHive::new(cells(&log, fails.clone())).start_timeout(10 * SECOND);
    hive.start().await;
    let leader = hive.get::<Scope<Leader>>();
    for (how, expected) in [
        ("error", "no quorum"),
        ("panic", "panicked: index out of bounds"),
        ("hang", "did not finish within 10s"),
    ] {
        *fails.lock() = Some(how);
        let error = leader.start().await.unwrap_err();
        assert!(matches!(&error, HiveError::Scope { scope, .. } if scope == "leader"), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(leader.state(), State::Failed);
        assert_eq!(hive.health("leader.scope").level, Level::Degraded);
        assert!(log.lock().last().unwrap().starts_with("stop lease"), "{log:?}");
    }
    *fails.lock() = None;
    leader.start().await.unwrap();
    assert_eq!(hive.health("leader.scope").message, "Started");
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn invalid_state_transitions_are_refused() {
    let log = Log::default();
    let (mut hive, leader) = started(&log).await;
    let refused = |result: Result<(), HiveError>| result.unwrap_err().to_string();
    assert_eq!(refused(leader.stop().await), "scope `leader`: cannot stop a scope that is built");
    leader.start().await.unwrap();
    assert_eq!(refused(leader.start().await), "scope `leader`: cannot start a scope that is started");
    // The caller may be dropped: a stop that has begun is completed.
    drop(tokio::time::timeout(Duration::ZERO, leader.stop()).await);
    assert_eq!(leader.changed_from(State::Started).await, State::Stopped);
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_waits_for_the_hive_and_ends_with_it() {
    let log = Log::default();
    let early = log.clone();
    let mut all = cells(&log, Arc::new(Mutex::new(Some("hang"))));
    all.push(invoke(move |leader: Arc<Scope<Leader>>, lifecycle: Lifecycle, jobs: JobGroup| {
        let log = early.clone();
        jobs.one_shot("elects", move |_| async move {
            log.lock().push("elected".to_owned());
            drop(leader.start().await);
            Ok(())
        })
        .add();
        lifecycle
            .hook("slow")
            .on_start(|_| async {
                sleep(SECOND).await;
                Ok(())
            })
            .add();
    }));
    let mut hive = TestHive::new(all);
    hive.start().await;
    assert_eq!(*log.lock(), ["start store", "elected"], "the hive had not started");
    sleep(SECOND).await;
    assert_eq!(log.lock()[2..4], ["start lease 1", "job 1"]);
    hive.stop().await;
    assert_eq!(log.lock()[4..], ["stop lease 1", "stop store"], "its start hung, and was given up");
}

#[tokio::test]
async fn the_graph_of_a_scope_is_planned_with_all_others() {
    struct Inner;
    #[derive(Object)]
    struct Only;
    let twice = scope::<Leader>(
        "outer",
        "x",
        [
            provide(|| Only),
            scope::<Inner>("inner", "x", invoke(|_: Arc<Only>, _: Arc<u8>| ())),
            invoke(|_: Arc<Scope<Inner>>| ()),
        ],
    );
    let text = hive::validate([twice.clone(), invoke(|_: Arc<Scope<Leader>>| ())]).unwrap_err().to_string();
    assert!(text.contains("missing Arc<u8>") && text.contains("module `outer.inner`"), "{text}");
    let outside = invoke(|_: Arc<Only>| ());
    let text = hive::validate([twice.clone(), supply(Arc::new(1_u8)), outside]).unwrap_err().to_string();
    assert!(text.contains("Only") && text.contains("outer"), "{text}");

    // A scope in a scope is built again with it.
    let inner = Arc::new(Mutex::new(Vec::new()));
    let seen = inner.clone();
    let keep = invoke(move |inner: Arc<Scope<Inner>>| seen.lock().push(inner));
    let outer = scope::<Leader>("outer", "x", [keep, scope::<Inner>("inner", "x", invoke(|_: Arc<u8>| ()))]);
    let mut hive = TestHive::new([outer, supply(Arc::new(1_u8)), invoke(|_: Arc<Scope<Leader>>| ())]);
    hive.start().await;
    let leader = hive.get::<Scope<Leader>>();
    leader.start().await.unwrap();
    let first = inner.lock()[0].clone();
    first.start().await.unwrap();
    leader.stop().await.unwrap();
    assert_eq!(first.state(), State::Stopped, "with the scope around it");
    leader.start().await.unwrap();
    assert_eq!(inner.lock()[1].state(), State::Built);
    let events = hive.events();
    let starts = events.iter().filter(|event| matches!(event, Event::ScopeStarted { .. })).count();
    assert_eq!(starts, 3);
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_hook_that_starts_a_scope_fails_at_once() {
    let log = Log::default();
    let mut all = cells(&log, Arc::default());
    all.push(module(
        "user",
        "x",
        invoke(|leader: Arc<Scope<Leader>>, lifecycle: Lifecycle| {
            lifecycle.hook("lead").on_start(|_| async move { Ok(leader.start().await?) }).add();
        }),
    ));
    let begin = tokio::time::Instant::now();
    let text = TestHive::new(all).try_start().await.unwrap_err().to_string();
    let expected = "scope `leader`: Scope::start in a start hook waits for itself; call it from a job";
    assert!(text.contains("start hook `lead` of module `user`") && text.contains(expected), "{text}");
    assert_eq!(begin.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_starts_a_scope_while_the_hive_stops_has_not_failed() {
    let log = Log::default();
    let mut all = cells(&log, Arc::default());
    all.push(module(
        "user",
        "x",
        invoke(|leader: Arc<Scope<Leader>>, jobs: JobGroup, lifecycle: Lifecycle| {
            let stops = Arc::new(tokio::sync::Notify::new());
            let stop = stops.clone();
            jobs.one_shot("lead", |_| async move {
                stops.notified().await;
                Ok(leader.start().await?)
            })
            .add();
            lifecycle
                .hook("last")
                .on_stop(move |_| async move {
                    stop.notify_one();
                    sleep(SECOND).await;
                    Ok(())
                })
                .add();
        }),
    ));
    let mut hive = TestHive::new(all);
    hive.start().await;
    sleep(SECOND).await;
    hive.stop().await;
    hive.assert_no_warning();
    assert!(hive.health("user.job-lead").last_word.starts_with("Finished"));
}

/// A hook of a scope that starts or stops the scope would wait for itself.
#[tokio::test(start_paused = true)]
async fn a_scope_that_waits_for_itself_fails_at_once() {
    type Handle = Arc<std::sync::OnceLock<Arc<Scope<Leader>>>>;
    for at_start in [true, false] {
        let handle = Handle::default();
        let own = handle.clone();
        let hooks = move |lifecycle: Lifecycle| {
            let (starts, stops) = (own.clone(), own.clone());
            lifecycle
                .hook("again")
                .on_start(move |_| async move {
                    if at_start { Ok(starts.get().unwrap().start().await?) } else { Ok(()) }
                })
                .on_stop(move |_| async move { Ok(stops.get().unwrap().stop().await?) })
                .add();
        };
        let leader = hive::scope::<Leader>("leader", "x", [invoke(hooks)]);
        let mut hive = TestHive::needing::<Scope<Leader>>(leader);
        hive.start().await;
        let leader = hive.get::<Scope<Leader>>();
        assert!(handle.set(leader.clone()).is_ok());
        let begin = tokio::time::Instant::now();
        let expected = |action| {
            format!(
                "Scope::{action} in a hook or constructor of the scope waits for itself; call it from a job"
            )
        };
        if at_start {
            let text = leader.start().await.unwrap_err().to_string();
            assert!(text.contains(&expected("start")), "{text}");
        } else {
            leader.start().await.unwrap();
            // As part of the scope's own stop, and of the hive's.
            let text = leader.stop().await.unwrap_err().to_string();
            assert!(text.contains(&expected("stop")), "{text}");
            leader.start().await.unwrap();
            let text = hive.try_stop().await.unwrap_err().to_string();
            assert!(text.contains(&expected("stop")), "{text}");
        }
        assert_eq!(begin.elapsed(), Duration::ZERO);
        if at_start {
            hive.stop().await;
        }
    }
}
