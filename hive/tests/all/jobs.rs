//! Background jobs in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures::StreamExt;
use hive::prelude::*;
use hive::{Event, HiveError, JobHandle};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

type Log = Arc<Mutex<Vec<String>>>;

async fn started(add: impl Fn(JobGroup) + Send + Sync + 'static) -> TestHive {
    let mut hive = TestHive::new(module("m", "x", invoke(add)));
    hive.start().await;
    hive
}

#[tokio::test(start_paused = true)]
async fn one_shot_reports_and_keeps_its_last_word() {
    let mut hive = started(|jobs| {
        jobs.one_shot("good", |_| async {
            sleep(SECOND).await;
            Ok(())
        })
        .add();
        jobs.one_shot("bad", |_| async { anyhow::bail!("no route to host") }).add();
        jobs.one_shot("ugly", |_| async { panic!("index out of bounds") }).add();
    })
    .await;
    tokio::task::yield_now().await;
    assert_eq!(hive.health("m.job-good").message, "Running");
    sleep(2 * SECOND).await;
    let good = hive.health("m.job-good");
    assert_eq!((good.level, good.message.as_str()), (Level::Stopped, "Finished (1.0s)"));
    let bad = hive.health("m.job-bad");
    assert_eq!((bad.level, bad.error.as_str()), (Level::Degraded, "no route to host"));
    assert_eq!(hive.health("m.job-ugly").error, "panicked: index out of bounds");
    hive.stop().await;
    assert_eq!(hive.health("m.job-bad").level, Level::Degraded);
    assert_eq!(hive.hook_order(), ["job-good", "job-bad", "job-ugly"]);
}

#[tokio::test(start_paused = true)]
async fn retries_wait_longer_each_time_until_success() {
    let times: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let inner = times.clone();
    let begin = Instant::now();
    let mut hive = started(move |jobs| {
        let times = inner.clone();
        let backoff = Backoff::exponential(SECOND, 4 * SECOND).jitter(0.0);
        jobs.one_shot_with_retry("connect", backoff, move |_| {
            times.lock().push(begin.elapsed());
            let done = times.lock().len() == 5;
            async move { if done { Ok(()) } else { Err(anyhow::anyhow!("refused")) } }
        })
        .add();
    })
    .await;
    sleep(2 * SECOND).await;
    let status = hive.health("m.job-connect");
    assert_eq!(status.message, "Failed (duration 0.0ns, retry 2 in 2.0s)");
    sleep(60 * SECOND).await;
    assert_eq!(*times.lock(), [0, 1, 3, 7, 11].map(Duration::from_secs));
    assert_eq!(hive.health("m.job-connect").level, Level::Stopped);
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_last_failed_retry_may_shut_the_hive_down() {
    let cells = invoke(|jobs: JobGroup| {
        let backoff = Backoff::constant(SECOND).retries(2);
        jobs.one_shot_with_retry("connect", backoff, |_| async { anyhow::bail!("refused") })
            .shutdown_on_error()
            .add();
    });
    let outcome = Hive::builder(cells).build().unwrap().run_until_shutdown().await;
    let [HiveError::Shutdown(error)] = &outcome.errors[..] else { panic!("{outcome:?}") };
    assert_eq!(format!("{error:#}"), "job-connect of module ``: refused");
}

#[tokio::test(start_paused = true)]
async fn stop_waits_for_jobs_and_drops_those_that_ignore_cancellation() {
    let log = Log::default();
    let inner = log.clone();
    let mut hive = started(move |jobs| {
        let log = inner.clone();
        jobs.one_shot("deaf", |_| std::future::pending()).grace(3 * SECOND).add();
        jobs.one_shot("listens", move |cx| async move {
            cx.cancelled().await;
            sleep(SECOND).await;
            log.lock().push("tidied up".to_owned());
            Ok(())
        })
        .add();
    })
    .await;
    tokio::task::yield_now().await;
    let begin = Instant::now();
    hive.try_stop().await.unwrap();
    assert_eq!(begin.elapsed(), 4 * SECOND);
    assert_eq!(*log.lock(), ["tidied up"]);
    assert!(hive.events().iter().any(|e| matches!(e, Event::JobAborted { job, .. } if &**job == "job-deaf")));
    assert_eq!(hive.health("m.job-deaf").error, "did not stop within 3.0s");
}

#[tokio::test(start_paused = true)]
async fn jobs_added_later_start_at_once_and_stop_first() {
    let log = Log::default();
    let (inner, group) = (log.clone(), Arc::new(Mutex::new(None)));
    let keep = group.clone();
    let job = move |jobs: &JobGroup, name: &'static str, log: &Log| {
        let log = log.clone();
        jobs.one_shot(name, move |cx| async move {
            log.lock().push(format!("{name} runs"));
            cx.cancelled().await;
            log.lock().push(format!("{name} ends"));
            Ok(())
        })
        .add()
    };
    let mut hive = TestHive::new(invoke(move |jobs: JobGroup, lifecycle: Lifecycle| {
        job(&jobs, "early", &inner);
        let log = inner.clone();
        lifecycle
            .hook("hook")
            .on_stop(move |_| async move {
                log.lock().push("hook stops".to_owned());
                Ok(())
            })
            .add();
        *keep.lock() = Some(jobs);
    }));
    hive.start().await;
    let jobs = group.lock().take().unwrap();
    job(&jobs, "late", &log);
    let handle = job(&jobs, "latest", &log);
    let ended = job(&jobs, "ended", &log);
    sleep(SECOND).await;
    ended.stop().await;
    assert!(ended.is_finished() && !handle.is_finished());
    hive.stop().await;
    assert!(handle.is_finished());
    assert_eq!(
        *log.lock(),
        [
            "early runs",
            "late runs",
            "latest runs",
            "ended runs",
            "ended ends",
            "latest ends",
            "late ends",
            "hook stops",
            "early ends"
        ]
    );
    // After the stop nothing runs any more.
    assert!(job(&jobs, "too late", &log).is_finished());
    assert_eq!(log.lock().len(), 9);
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_leaves_no_task() {
    let log = Log::default();
    let inner = log.clone();
    let mut hive = TestHive::new(invoke(move |jobs: JobGroup, lifecycle: Lifecycle| {
        let log = inner.clone();
        jobs.one_shot("job", move |cx| async move {
            cx.cancelled().await;
            log.lock().push("cancelled".to_owned());
            Ok(())
        })
        .add();
        lifecycle
            .hook("fails")
            .on_start(|_| async {
                sleep(SECOND).await;
                anyhow::bail!("x")
            })
            .add();
    }));
    hive.try_start().await.unwrap_err();
    assert_eq!(*log.lock(), ["cancelled"]);
    let metrics = tokio::runtime::Handle::current().metrics();
    tokio::task::yield_now().await;
    assert_eq!(metrics.num_alive_tasks(), 0);
}

/// Adds a job and keeps its handle. A value in the job's future records when it is dropped.
fn kept_handle(
    kept: &Arc<Mutex<Option<JobHandle>>>,
    held: Arc<()>,
) -> impl Fn(JobGroup) + Send + Sync + use<> {
    let kept = kept.clone();
    move |jobs: JobGroup| {
        let held = held.clone();
        let job = jobs.one_shot("late", move |_| async move {
            drop(held);
            Ok(())
        });
        *kept.lock() = Some(job.add());
    }
}

async fn ends(handle: &JobHandle) {
    tokio::time::timeout(SECOND, handle.finished()).await.expect("the job never ends");
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_hook_never_runs_is_finished_when_the_start_has_failed() {
    let (kept, held) = (Arc::default(), Arc::new(()));
    let add = kept_handle(&kept, held.clone());
    let mut hive = TestHive::new(invoke(move |lifecycle: Lifecycle, jobs: JobGroup| {
        lifecycle.hook("fails").on_start(|_| async { anyhow::bail!("x") }).add();
        add(jobs);
    }));
    hive.try_start().await.unwrap_err();
    let handle = kept.lock().take().unwrap();
    ends(&handle).await;
    assert_eq!(Arc::strong_count(&held), 2, "one is the constructor's");
    // The hive still exists at this point.
    drop(hive);
}

#[tokio::test(start_paused = true)]
async fn a_job_of_a_hive_that_cannot_be_populated_is_finished() {
    let kept = Arc::default();
    let add = kept_handle(&kept, Arc::default());
    let mut hive = TestHive::new([invoke(add), invoke(|| -> anyhow::Result<()> { anyhow::bail!("x") })]);
    hive.try_start().await.unwrap_err();
    let handle = kept.lock().take().unwrap();
    ends(&handle).await;
    drop(hive);
}

#[tokio::test(start_paused = true)]
async fn a_job_of_a_hive_that_is_not_started_is_finished_with_it() {
    let kept = Arc::default();
    let mut hive = Hive::builder(invoke(kept_handle(&kept, Arc::default()))).build().unwrap();
    hive.populate().await.unwrap();
    let handle = kept.lock().take().unwrap();
    tokio::time::timeout(SECOND, handle.finished()).await.expect_err("it may be started yet");
    drop(hive);
    ends(&handle).await;
}

#[tokio::test(start_paused = true)]
async fn dropping_a_hive_drops_its_tasks() {
    let hive = started(|jobs| {
        jobs.one_shot("job", |_| std::future::pending()).add();
    })
    .await;
    let metrics = tokio::runtime::Handle::current().metrics();
    assert_eq!(metrics.num_alive_tasks(), 1);
    hive.kill();
    tokio::task::yield_now().await;
    assert_eq!(metrics.num_alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_job_added_to_a_hive_that_is_gone_does_not_run() {
    let kept: Arc<Mutex<Option<JobGroup>>> = Arc::default();
    let keep = kept.clone();
    let hive = started(move |jobs| *keep.lock() = Some(jobs)).await;
    hive.kill();
    let jobs = kept.lock().take().unwrap();
    let job = jobs.one_shot("late", |_| std::future::pending()).add();
    tokio::time::timeout(Duration::from_secs(1), job.finished()).await.unwrap();
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn timers_keep_their_beat() {
    let times: Arc<Mutex<Vec<u64>>> = Arc::default();
    let inner = times.clone();
    let begin = Instant::now();
    let mut hive = started(move |jobs| {
        let times = inner.clone();
        // The second run takes 25 s: the ticks at 30 and 40 are skipped, the schedule does not shift.
        jobs.timer("beat", 10 * SECOND, move |_| {
            let (times, now) = (times.clone(), begin.elapsed().as_secs());
            async move {
                times.lock().push(now);
                if now == 20 {
                    sleep(25 * SECOND).await;
                }
                Ok(())
            }
        })
        .add();
    })
    .await;
    sleep(65 * SECOND).await;
    assert_eq!(*times.lock(), [10, 20, 50, 60]);
    hive.stop().await;
    assert_eq!(hive.health("m.timer-job-beat").level, Level::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_failing_timer_degrades_and_recovers() {
    let runs = Arc::new(AtomicU32::new(0));
    let mut hive = started(move |jobs| {
        let runs = runs.clone();
        jobs.timer("gc", 10 * SECOND, move |_| {
            let run = runs.fetch_add(1, Ordering::SeqCst);
            async move { if run == 0 { panic!("first run") } else { Ok(()) } }
        })
        .immediate()
        .add();
    })
    .await;
    sleep(SECOND).await;
    assert_eq!(hive.health("m.timer-job-gc").error, "panicked: first run");
    sleep(10 * SECOND).await;
    assert_eq!(hive.health("m.timer-job-gc").level, Level::Ok);
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn triggers_coalesce_and_the_last_one_is_never_lost() {
    let trigger = Trigger::new().with_debounce(50 * Duration::from_millis(1));
    let runs = Arc::new(AtomicU32::new(0));
    let (inner, count) = (trigger.clone(), runs.clone());
    let mut hive = started(move |jobs| {
        let count = count.clone();
        jobs.timer("sync", Duration::ZERO, move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            async { Ok(()) }
        })
        .trigger(&inner)
        .add();
    })
    .await;
    sleep(SECOND).await;
    assert_eq!(runs.load(Ordering::SeqCst), 0, "an interval of zero runs by trigger only");
    trigger.trigger();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    for _ in 0..3 {
        sleep(Duration::from_millis(5)).await;
        trigger.trigger();
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1, "held back");
    sleep(SECOND).await;
    assert_eq!(runs.load(Ordering::SeqCst), 2, "three triggers, one run, none lost");
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn jitter_delays_but_never_hastens() {
    let times: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let inner = times.clone();
    let begin = Instant::now();
    let mut hive = started(move |jobs| {
        let times = inner.clone();
        jobs.timer("gc", 10 * SECOND, move |_| {
            times.lock().push(begin.elapsed());
            async { Ok(()) }
        })
        .jitter(0.5)
        .add();
    })
    .await;
    sleep(1006 * SECOND).await;
    hive.stop().await;
    let times = times.lock();
    assert_eq!(times.len(), 100);
    for (i, at) in times.iter().enumerate() {
        let late = at.as_secs_f64() - 10.0 * (i + 1) as f64;
        assert!((-0.002..=5.002).contains(&late), "run {i} at {at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn observers_follow_their_stream() {
    let seen: Arc<Mutex<Vec<u32>>> = Arc::default();
    let inner = seen.clone();
    let mut hive = started(move |jobs| {
        let seen = inner.clone();
        let stream = futures::stream::iter(1..=4).chain(futures::stream::once(async {
            sleep(60 * SECOND).await;
            5
        }));
        jobs.observer("routes", stream, move |_, item: u32| {
            seen.lock().push(item);
            async move { if item == 4 { Err(anyhow::anyhow!("bad route")) } else { Ok(()) } }
        })
        .add();
    })
    .await;
    sleep(SECOND).await;
    let status = hive.health("m.observer-job-routes");
    assert_eq!((status.message.as_str(), status.error.as_str()), ("Failed at item 4", "bad route"));
    sleep(60 * SECOND).await;
    assert_eq!(hive.health("m.observer-job-routes").message, "Stream ended after 5 items");
    assert_eq!(*seen.lock(), [1, 2, 3, 4, 5]);
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn scopes_name_the_part() {
    let mut hive = started(|jobs| {
        jobs.child("node-1").one_shot("sync", |_| async { Ok(()) }).add();
    })
    .await;
    sleep(SECOND).await;
    assert_eq!(hive.health("m.node-1.job-sync").module(), "m");
    hive.stop().await;
}

/// No task waits for the work any more, and it still delays the end of the job: its resources are stopped afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_has_not_ended_before_its_blocking_work_has() {
    let log: Log = Arc::default();
    let inner = log.clone();
    let mut hive = TestHive::new(module(
        "m",
        "x",
        invoke(move |lifecycle: Lifecycle, jobs: JobGroup| {
            let (of_hook, of_job) = (inner.clone(), inner.clone());
            lifecycle
                .hook("target")
                .on_stop(move |_| async move {
                    of_hook.lock().push("hook".to_owned());
                    Ok(())
                })
                .add();
            jobs.one_shot("works", move |cx: JobCx| async move {
                let (token, of_piece) = (cx.token().clone(), of_job.clone());
                let piece = hive::blocking(move || {
                    while !token.is_cancelled() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    std::thread::sleep(Duration::from_millis(100));
                    of_piece.lock().push("piece".to_owned());
                });
                tokio::select! {
                    biased;
                    () = piece => {}
                    () = cx.cancelled() => {}
                }
                of_job.lock().push("job".to_owned());
                Ok(())
            })
            .add();
        }),
    ));
    hive.start().await;
    sleep(Duration::from_millis(20)).await;
    hive.stop().await;
    assert_eq!(*log.lock(), ["job", "piece", "hook"]);
}

#[tokio::test]
async fn a_panic_of_blocking_work_is_that_of_its_job() {
    let mut hive = started(|jobs| {
        jobs.one_shot("ugly", |_| async {
            hive::blocking(|| {
                tracing::info!("it is reported");
                panic!("index out of bounds")
            })
            .await
        })
        .add();
    })
    .await;
    hive.until("the job fails", || hive.has_logged(hive::LogLevel::WARN, "index out of bounds")).await;
    assert_eq!(hive.health("m.job-ugly").error, "panicked: index out of bounds");
    assert_eq!(&*hive.logged(hive::LogLevel::INFO, "it is reported").module, "m");
    hive.stop().await;
}

fn thread_name() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_job_on_its_own_thread_blocks_no_worker() {
    let names: Log = Arc::default();
    let (log, gate) = (names.clone(), Arc::new(AtomicU32::new(0)));
    let opened = gate.clone();
    let mut hive = started(move |jobs| {
        let (log, gate) = (log.clone(), gate.clone());
        jobs.one_shot("a-name-of-more-than-fifteen", move |cx: JobCx| async move {
            log.lock().push(thread_name());
            // Timers are those of the runtime.
            sleep(Duration::from_millis(1)).await;
            let name = hive::blocking(thread_name).await;
            log.lock().push(name);
            while gate.load(Ordering::Relaxed) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            cx.cancelled().await;
            log.lock().push(thread_name());
            Ok(())
        })
        .on_own_thread()
        .add();
    })
    .await;
    // The only worker thread is free while the job blocks.
    while names.lock().len() < 2 {
        sleep(Duration::from_millis(1)).await;
    }
    opened.store(1, Ordering::Relaxed);
    assert_eq!(hive.health("m.job-a-name-of-more-than-fifteen").message, "Running");
    hive.stop().await;
    assert_eq!(*names.lock(), ["a-name-of-more-"; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_on_its_own_thread_ends_fails_panics_and_is_dropped_as_others() {
    struct Dropped(Log);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.lock().push(format!("dropped on {}", thread_name()));
        }
    }
    let log: Log = Arc::default();
    let inner = log.clone();
    let deaf_runs = Arc::new(AtomicBool::new(false));
    let runs = deaf_runs.clone();
    let mut hive = started(move |jobs| {
        let (dropped, runs) = (Dropped(inner.clone()), runs.clone());
        jobs.one_shot("good", |_| async { Ok(()) }).on_own_thread().add();
        jobs.one_shot("bad", |_| async { anyhow::bail!("no route to host") }).on_own_thread().add();
        jobs.one_shot("ugly", |_| async { panic!("index out of bounds") }).on_own_thread().add();
        jobs.one_shot("deaf", |_| async move {
            let _dropped = dropped;
            runs.store(true, Ordering::Release);
            std::future::pending().await
        })
        .grace(Duration::from_millis(20))
        .on_own_thread()
        .add();
    })
    .await;
    let ended = || hive.events().iter().filter(|event| matches!(event, Event::JobEnded { .. })).count();
    hive.until("all but one have ended", || ended() == 3 && deaf_runs.load(Ordering::Acquire)).await;
    assert_eq!(hive.health("m.job-good").level, Level::Stopped);
    assert_eq!(hive.health("m.job-bad").error, "no route to host");
    assert_eq!(hive.health("m.job-ugly").error, "panicked: index out of bounds");
    hive.try_stop().await.unwrap();
    assert_eq!(hive.health("m.job-deaf").message, "Dropped", "it does not look at its cancellation");
    while log.lock().is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(*log.lock(), ["dropped on deaf"]);
}

/// A paused clock does not take other threads into account.
#[tokio::test(start_paused = true)]
async fn in_a_runtime_of_one_thread_a_job_stays_a_task() {
    let (log, begin): (Log, _) = (Arc::default(), Instant::now());
    let (inner, here) = (log.clone(), thread_name());
    let mut hive = started(move |jobs| {
        let log = inner.clone();
        jobs.one_shot("task", move |_| async move {
            sleep(SECOND).await;
            log.lock().push(thread_name());
            Ok(())
        })
        .on_own_thread()
        .add();
    })
    .await;
    sleep(2 * SECOND).await;
    assert_eq!((&*log.lock(), begin.elapsed()), (&vec![here], 2 * SECOND));
    hive.stop().await;
}
