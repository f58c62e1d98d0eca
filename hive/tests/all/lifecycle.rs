//! Start and stop in virtual time: order, failures, limits, cancellation, events, states.

use std::sync::Arc;
use std::time::Duration;

use hive::prelude::*;
use hive::{Event, HiveError, HookError, LogLevel, State};
use parking_lot::Mutex;

type Log = Arc<Mutex<Vec<String>>>;

const SECOND: Duration = Duration::from_secs(1);

/// Adds a hook that writes to the log when it runs.
fn hook(lifecycle: &Lifecycle, log: &Log, name: &'static str) {
    let (start, stop) = (log.clone(), log.clone());
    let starting = move |_| async move {
        start.lock().push(format!("start {name}"));
        Ok(())
    };
    let stopping = move |_| async move {
        stop.lock().push(format!("stop {name}"));
        Ok(())
    };
    lifecycle.hook(name).on_start(starting).on_stop(stopping).add();
}

fn three_hooks_and(log: &Log, fourth: impl Fn(&Lifecycle) + Send + Sync + 'static) -> TestHive {
    let log = log.clone();
    TestHive::new(module(
        "m",
        "x",
        [invoke(move |lifecycle: Lifecycle| {
            for name in ["one", "two", "three"] {
                hook(&lifecycle, &log, name);
            }
            fourth(&lifecycle);
        })],
    ))
}

#[tokio::test(start_paused = true)]
async fn hooks_follow_dependencies_and_stop_in_reverse() {
    #[derive(Object)]
    struct Store;
    #[derive(Object)]
    struct Server;
    let log = Log::default();
    let (a, b, c) = (log.clone(), log.clone(), log.clone());
    let mut hive = TestHive::new([
        invoke(move |_: Arc<Server>, lifecycle: Lifecycle| hook(&lifecycle, &c, "user")),
        provide(move |_: Arc<Store>, lifecycle: Lifecycle| {
            hook(&lifecycle, &b, "server");
            Server
        }),
        provide(move |lifecycle: Lifecycle| {
            hook(&lifecycle, &a, "store");
            Store
        }),
    ]);
    hive.start().await;
    assert_eq!(hive.hook_order(), ["store", "server", "user"]);
    hive.stop().await;
    assert_eq!(hive.stop_order(), ["user", "server", "store"]);
    assert_eq!(
        *log.lock(),
        ["start store", "start server", "start user", "stop user", "stop server", "stop store"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_is_rolled_back() {
    let log = Log::default();
    let stopped = log.clone();
    let line = line!() + 3;
    let mut hive = three_hooks_and(&log, move |lifecycle| {
        let stopped = stopped.clone();
        let four = lifecycle.hook("four");
        four.on_start(|_| async { anyhow::bail!("no route to host") })
            .on_stop(move |_| async move {
                stopped.lock().push("stop four".to_owned());
                Ok(())
            })
            .add();
    });
    let error = hive.try_start().await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("start hook `four` of module `m` (all::lifecycle::three_hooks_and"), "{text}");
    let line = format!(", hive/tests/all/lifecycle.rs:{line}) after 0.0ns: no route to host");
    assert!(text.contains(&line), "{text}");
    assert!(text.ends_with("no route to host; 3 hooks undone"), "{text}");
    assert_eq!(
        *log.lock(),
        ["start one", "start two", "start three", "stop three", "stop two", "stop one"],
        "the failed hook itself is not stopped"
    );
    assert_eq!(hive.hive().state(), State::Failed);
}

#[tokio::test(start_paused = true)]
async fn errors_of_a_rollback_are_reported_too() {
    let mut hive = TestHive::new(invoke(|lifecycle: Lifecycle| {
        lifecycle.hook("one").on_stop(|_| async { anyhow::bail!("disk full") }).add();
        lifecycle.hook("two").on_start(|_| async { panic!("index out of bounds") }).add();
    }));
    let text = hive.try_start().await.unwrap_err().to_string();
    assert!(text.contains("start hook `two`"), "{text}");
    assert!(
        text.contains("panicked: index out of bounds; 1 hook undone\n  while undoing: stop hook `one`"),
        "{text}"
    );
    assert!(text.ends_with("disk full"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn five_minutes_pass_instantly() {
    let log = Log::default();
    let begin = std::time::Instant::now();
    let mut hive = three_hooks_and(&log, |lifecycle| {
        lifecycle.hook("crd-sync").on_start(|_| std::future::pending()).add();
    });
    let text = hive.try_start().await.unwrap_err().to_string();
    assert!(text.contains("start hook `crd-sync` of module `m`"), "{text}");
    assert!(
        text.ends_with("did not finish within 300s (HiveBuilder::start_timeout); 3 hooks undone"),
        "{text}"
    );
    assert!(begin.elapsed() < SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_kept_hook_context_ends_with_the_hook() {
    let kept: Arc<Mutex<Vec<hive::HookCx>>> = Arc::default();
    let (keep, before) = (kept.clone(), kept.clone());
    let mut hive = TestHive::new(invoke(move |lifecycle: Lifecycle| {
        let (asked, silent, before) = (keep.clone(), keep.clone(), before.clone());
        lifecycle
            .hook("asks")
            .on_start(|cx| async move {
                assert!(!cx.is_cancelled());
                asked.lock().push(cx);
                Ok(())
            })
            .add();
        lifecycle
            .hook("keeps")
            .on_start(|cx| async move {
                silent.lock().push(cx);
                Ok(())
            })
            .add();
        lifecycle
            .hook("waits")
            .on_start(|cx| async move {
                assert!(before.lock().iter().all(hive::HookCx::is_cancelled));
                before.lock().push(cx.clone());
                tokio::time::sleep(SECOND).await;
                assert!(!cx.is_cancelled());
                Ok(())
            })
            .add();
    }));
    hive.start().await;
    assert_eq!(kept.lock().len(), 3);
    assert!(kept.lock().iter().all(hive::HookCx::is_cancelled));
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn limits_may_be_as_long_as_durations_are() {
    let cells = invoke(|lifecycle: Lifecycle| {
        let slow = |_| async {
            tokio::time::sleep(SECOND).await;
            Ok(())
        };
        lifecycle.hook("slow").on_start(slow).on_stop(slow).timeout(Duration::MAX).add();
    });
    let hive = Hive::builder(cells).start_timeout(Duration::MAX).stop_timeout(Duration::MAX);
    let mut hive = hive.heartbeat(Duration::MAX).build().unwrap();
    hive.start().await.unwrap();
    hive.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hook_may_have_its_own_limit_and_last_words() {
    let mut hive = TestHive::new(invoke(|lifecycle: Lifecycle| {
        let start = |cx: HookCx| async move {
            cx.cancelled().await;
            anyhow::bail!("the API server at 10.0.0.1 does not answer")
        };
        lifecycle.hook("sync").on_start(start).timeout(7 * SECOND).add();
    }));
    let begin = tokio::time::Instant::now();
    let text = hive.try_start().await.unwrap_err().to_string();
    assert!(
        text.contains(
            "did not finish within 7s (HookBuilder::timeout): the API server at 10.0.0.1 does not answer"
        ),
        "{text}"
    );
    assert_eq!(begin.elapsed(), 7 * SECOND);
}

/// Nothing else runs while a hook blocks the thread, not even its timeout.
#[tokio::test]
async fn a_hook_that_blocks_its_thread_past_its_limit_fails() {
    let block = |_| async {
        std::thread::sleep(Duration::from_millis(250));
        Ok(())
    };
    let mut hive = TestHive::new(invoke(move |lifecycle: Lifecycle| {
        lifecycle.hook("in-time").on_start(block).timeout(30 * SECOND).add();
        lifecycle.hook("blocks").on_start(block).timeout(Duration::from_millis(20)).add();
    }));
    let text = hive.try_start().await.unwrap_err().to_string();
    assert!(text.contains("start hook `blocks`") && text.contains("; 1 hook undone"), "{text}");
    let expected = "its limit is 20ms: it held up its thread; use hive::blocking(..).await";
    assert!(text.contains(": took 2") && text.contains(expected), "{text}");
    let mut hive = TestHive::new(invoke(move |lifecycle: Lifecycle| {
        // Like the hook above, but not at its first poll.
        let block = move |cx| async move {
            tokio::task::yield_now().await;
            block(cx).await
        };
        lifecycle.hook("blocks").on_stop(block).timeout(Duration::from_millis(20)).add();
    }));
    hive.start().await;
    let text = hive.try_stop().await.unwrap_err().to_string();
    assert!(text.contains("stop hook `blocks`") && text.contains(expected), "{text}");
}

#[tokio::test(start_paused = true)]
async fn construction_counts_towards_the_limit() {
    async fn slow() -> Arc<u8> {
        tokio::time::sleep(10 * SECOND).await;
        Arc::new(0)
    }
    let cells = [provide(slow), invoke(|_: Arc<u8>| ())];
    let text = TestHive::new(cells).start_timeout(SECOND).try_start().await.unwrap_err().to_string();
    assert!(text.contains("slow (hive/tests/all/lifecycle.rs:"), "{text}");
    assert!(text.ends_with("failed: did not finish within 1s"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn stop_continues_after_errors_and_keeps_them() {
    let log = Log::default();
    let mut hive = three_hooks_and(&log, |lifecycle| {
        lifecycle.hook("four").on_stop(|_| async { anyhow::bail!("first fault") }).add();
        lifecycle.hook("five").on_stop(|_| async { panic!("second fault") }).add();
    });
    hive.start().await;
    let text = hive.try_stop().await.unwrap_err().to_string();
    assert!(text.starts_with("2 stop hooks failed:\n  - stop hook `five`"), "{text}");
    assert!(text.contains("panicked: second fault\n  - stop hook `four`"), "{text}");
    assert_eq!(log.lock()[3..], ["stop three", "stop two", "stop one"]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_out_of_time_names_hooks_that_did_not_run() {
    let log = Log::default();
    let mut hive = three_hooks_and(&log, |lifecycle| {
        lifecycle.hook("stuck").on_stop(|_| std::future::pending()).add();
    })
    .stop_timeout(SECOND);
    hive.start().await;
    let Err(HiveError::Stop(failures)) = hive.try_stop().await else { panic!("no stop error") };
    let outcomes: Vec<_> =
        failures.iter().map(|f| (f.hook.as_str(), matches!(f.reason, HookError::NotRun))).collect();
    assert_eq!(outcomes, [("stuck", false), ("three", true), ("two", true), ("one", true)]);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_during_start_cancels_it_and_rolls_back() {
    let log = Log::default();
    let mut hive = three_hooks_and(&log, |lifecycle| {
        lifecycle.hook("waits").on_start(|_| std::future::pending()).add();
    });
    let early = tokio::time::timeout(SECOND, hive.try_start()).await;
    assert!(early.is_err(), "it waits");

    let log = Log::default();
    let inner = log.clone();
    let cells = invoke(move |lifecycle: Lifecycle, shutdown: Shutdowner| {
        hook(&lifecycle, &inner, "one");
        lifecycle
            .hook("asks")
            .on_start(move |_| async move {
                shutdown.shutdown();
                std::future::pending().await
            })
            .add();
        hook(&lifecycle, &inner, "never");
    });
    let outcome = Hive::builder(cells).build().unwrap().run_until_shutdown().await;
    assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
    assert_eq!(*log.lock(), ["start one", "stop one"]);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_during_construction_runs_no_more_constructors() {
    let cells = [
        invoke(|shutdown: Shutdowner| shutdown.shutdown()),
        invoke(|| -> anyhow::Result<()> { anyhow::bail!("must not run") }),
    ];
    let mut hive = TestHive::new(cells);
    let error = hive.try_start().await.unwrap_err();
    assert!(matches!(error, HiveError::Cancelled { .. }), "{error}");
    // A requested stop is not a failure.
    hive.assert_no_warning();
    hive.logged(LogLevel::INFO, "Start cancelled");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_start_logs_no_error() {
    let mut hive = TestHive::new(invoke(|lifecycle: Lifecycle, shutdown: Shutdowner| {
        lifecycle
            .hook("sync")
            .on_start(move |_| async move {
                shutdown.shutdown();
                std::future::pending().await
            })
            .add();
    }));
    hive.try_start().await.unwrap_err();
    hive.assert_no_warning();
    hive.logged(LogLevel::INFO, "Cancelled start hook hook=sync");
    hive.logged(LogLevel::INFO, "Start cancelled");
}

#[tokio::test(start_paused = true)]
async fn an_empty_hook_is_logged_as_a_warning() {
    struct Token;
    let line = line!() + 2;
    let mut hive = TestHive::new(invoke(|lifecycle: Lifecycle| {
        lifecycle.hook("nothing").add();
        lifecycle.hook("orders").provides::<Token>().add();
        lifecycle.hook("stops").on_stop(|_| async { Ok(()) }).add();
    }));
    hive.start().await;
    let warning = hive.logged(LogLevel::WARN, "Hook has nothing to do hook=nothing").to_string();
    assert!(warning.contains(&format!("hive/tests/all/lifecycle.rs:{line}:")), "{warning}");
    assert_eq!(hive.logs().iter().filter(|line| line.level == LogLevel::WARN).count(), 1);
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn run_reports_the_first_reason() {
    let cells = |error: Option<&'static str>| {
        invoke(move |lifecycle: Lifecycle, jobs: JobGroup, shutdown: Shutdowner| {
            lifecycle.hook("x").on_stop(|_| async { Ok(()) }).add();
            jobs.one_shot("ends", move |_| async move {
                match error {
                    Some(error) => shutdown.shutdown_with(anyhow::anyhow!(error)),
                    None => shutdown.shutdown(),
                }
                shutdown.shutdown_with(anyhow::anyhow!("too late"));
                Ok(())
            })
            .add();
        })
    };
    let outcome = Hive::builder(cells(None)).build().unwrap().run().await;
    assert!(outcome.into_result().is_ok());
    let outcome = Hive::builder(cells(Some("lost the lease"))).build().unwrap().run().await;
    assert_eq!(outcome.errors[0].to_string(), "lost the lease");
}

#[tokio::test(start_paused = true)]
async fn invalid_state_transitions_are_refused() {
    let mut hive = Hive::builder(invoke(|| ())).build().unwrap();
    let refused = |result: Result<(), HiveError>| result.unwrap_err().to_string();
    assert_eq!(hive.state(), State::Built);
    assert_eq!(refused(hive.stop().await), "cannot stop a hive that is built");
    hive.populate().await.unwrap();
    assert_eq!(refused(hive.populate().await), "cannot populate a hive that is populated");
    hive.start().await.unwrap();
    assert_eq!(refused(hive.start().await), "cannot start a hive that is started");
    hive.stop().await.unwrap();
    assert_eq!(refused(hive.stop().await), "cannot stop a hive that is stopped");
    assert_eq!(refused(hive.start().await), "cannot start a hive that is stopped");

    let mut failed =
        Hive::builder(invoke(|| anyhow::Ok(()).and_then(|()| anyhow::bail!("x")) as anyhow::Result<()>))
            .build()
            .unwrap();
    failed.populate().await.unwrap_err();
    assert_eq!(refused(failed.start().await), "cannot start a hive that is failed");
}

#[tokio::test(start_paused = true)]
async fn hooks_may_add_hooks_while_starting_and_not_after() {
    let log = Log::default();
    let (inner, late) = (log.clone(), Arc::new(Mutex::new(None)));
    let keep = late.clone();
    let mut hive = TestHive::new(invoke(move |lifecycle: Lifecycle| {
        *keep.lock() = Some(lifecycle.clone());
        let inner = inner.clone();
        lifecycle
            .clone()
            .hook("outer")
            .on_start(move |_| async move {
                hook(&lifecycle, &inner, "inner");
                Ok(())
            })
            .add();
    }));
    hive.start().await;
    let lifecycle = late.lock().take().unwrap();
    hook(&lifecycle, &log, "late");
    hive.stop().await;
    assert_eq!(hive.hook_order(), ["outer", "inner"]);
    assert_eq!(*log.lock(), ["start inner", "stop inner"]);
    assert!(
        hive.events().iter().any(|e| matches!(e, Event::HookTooLate { hook, .. } if &*hook.name == "late"))
    );
}

#[tokio::test(start_paused = true)]
async fn events_cover_the_whole_lifecycle() {
    let mut hive = TestHive::new(module(
        "m",
        "x",
        invoke(|lifecycle: Lifecycle| {
            let slow = |_| async {
                tokio::time::sleep(75 * SECOND).await;
                Ok(())
            };
            lifecycle.hook("slow").on_start(slow).on_stop(|_| async { Ok(()) }).add();
        }),
    ));
    hive.start().await;
    hive.stop().await;
    let story: Vec<String> = hive
        .events()
        .iter()
        .map(|event| match event {
            Event::Constructed { module, .. } => format!("constructed in {module}"),
            Event::Starting => "starting".to_owned(),
            Event::HookRuns { phase, hook, .. } => format!("{phase} {} of {}", hook.name, hook.module),
            Event::HookStillRuns { phase, elapsed, .. } => format!("{phase} still running after {elapsed:?}"),
            Event::HookRan { phase, duration, .. } => format!("{phase} ran for {duration:?}"),
            Event::Started { duration, .. } => format!("started in {duration:?}"),
            Event::Stopping => "stopping".to_owned(),
            Event::Stopped { failed, .. } => format!("stopped, {failed} failed"),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(
        story,
        [
            "starting",
            "constructed in m",
            "Populated { duration: 0ns }",
            "start slow of m",
            "start still running after 10s",
            "start still running after 20s",
            "start still running after 40s",
            "start ran for 75s",
            "started in 75s",
            "stopping",
            "stop slow of m",
            "stop ran for 0ns",
            "stopped, 0 failed",
        ]
    );
}

/// Several hives in one process, each on tasks of a shared runtime.
#[tokio::test]
async fn hives_run_side_by_side() {
    let hives = (0..4).map(|i| {
        let cells = invoke(move |lifecycle: Lifecycle, shutdown: Shutdowner| {
            lifecycle
                .hook("ends")
                .on_start(move |_| async move {
                    if i % 2 == 0 {
                        shutdown.shutdown();
                    } else {
                        shutdown.shutdown_with(anyhow::anyhow!("number {i}"));
                    }
                    Ok(())
                })
                .add();
        });
        Hive::builder(cells).build().unwrap().run_until_shutdown()
    });
    let mut tasks = tokio::task::JoinSet::new();
    for hive in hives {
        tasks.spawn(hive);
    }
    let mut errors: Vec<String> = tasks
        .join_all()
        .await
        .iter()
        .flat_map(|outcome| outcome.errors.iter().map(ToString::to_string))
        .collect();
    errors.sort();
    assert_eq!(errors, ["number 1", "number 3"]);
}

/// The number of started hooks and jobs is reported.
#[tokio::test(start_paused = true)]
async fn hooks_and_jobs_are_counted() {
    let work = |lifecycle: Lifecycle, jobs: JobGroup| {
        for name in ["a", "b"] {
            lifecycle.hook(name).on_start(|_| async { Ok(()) }).add();
        }
        jobs.one_shot("c", |cx: JobCx| async move {
            cx.cancelled().await;
            Ok(())
        })
        .add();
    };
    let mut hive = TestHive::new(invoke(work));
    hive.start().await;
    hive.logged(hive::LogLevel::INFO, "Started hive duration=0ns hooks=2 jobs=1");
    hive.finish().await;
}
