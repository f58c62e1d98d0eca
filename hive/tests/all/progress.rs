//! Stuck jobs are named within their deadline, others never.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hive::job::{Reason, Stuck, Watchdog};
use hive::prelude::*;
use tokio::sync::Notify;
use tokio::task::yield_now;

const SECOND: Duration = Duration::from_secs(1);
const DEADLINE: Duration = Duration::from_secs(20);

/// A hive of one module, and its jobs sampled once a second of a clock that only the test advances.
struct Observed {
    hive: TestHive,
    watchdog: Watchdog,
    now: Instant,
}

impl Observed {
    async fn new(add: impl Fn(JobGroup) + Send + Sync + 'static) -> Self {
        let mut hive = TestHive::new(module("m", "x", invoke(add)));
        hive.start().await;
        settled().await;
        let watchdog = Watchdog::new(hive.hive().jobs().clone(), DEADLINE);
        Observed { hive, watchdog, now: Instant::now() }
    }

    fn after(&mut self, time: Duration) -> Vec<Stuck> {
        self.now += time;
        self.watchdog.sample(self.now)
    }

    /// Returns after how many seconds a job is named, and why; `None` if not within an hour.
    fn named(&mut self) -> Option<(u32, String, Reason)> {
        (0..3600).find_map(|second| {
            let stuck = self.after(SECOND).into_iter().next()?;
            Some((second, stuck.job, stuck.reason))
        })
    }
}

async fn settled() {
    for _ in 0..10 {
        yield_now().await;
    }
}

/// Adds a job that works on each item, and blocks in the second until it is released.
fn follower(jobs: &JobGroup, more: &Arc<Notify>, go_on: &Arc<Notify>) {
    let (more, go_on) = (more.clone(), go_on.clone());
    jobs.one_shot("follow", move |cx: JobCx| async move {
        for item in 0.. {
            tokio::select! {
                () = cx.cancelled() => break,
                () = more.notified() => {}
            }
            let _working = cx.working();
            if item == 1 {
                go_on.notified().await;
            }
        }
        Ok(())
    })
    .add();
}

#[tokio::test]
async fn work_without_progress_is_named_within_its_deadline_until_it_continues() {
    let (more, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (m, g) = (more.clone(), go_on.clone());
    let mut observed = Observed::new(move |jobs| follower(&jobs, &m, &g)).await;
    assert_eq!(observed.named(), None, "a job that waits for events is not stuck");
    more.notify_one();
    settled().await;
    assert_eq!(observed.named(), None, "nor is one that has finished its work");
    more.notify_one();
    settled().await;
    let (seconds, job, reason) = observed.named().unwrap();
    assert!((18..20).contains(&seconds), "{seconds}");
    assert_eq!((job.as_str(), reason), ("m.job-follow", Reason::Unfinished));
    let stuck = observed.after(SECOND).remove(0);
    assert_eq!(stuck.to_string(), "does not come to an end with what it began, deadline 20s");
    assert!(stuck.since > DEADLINE - SECOND);

    go_on.notify_one();
    settled().await;
    assert_eq!(observed.after(SECOND), []);
    assert_eq!(observed.named(), None);
    observed.hive.stop().await;
    assert_eq!(observed.named(), None, "nothing is expected of jobs that are gone");
}

#[tokio::test]
async fn a_suspended_process_reports_no_stuck_job() {
    let (more, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (m, g) = (more.clone(), go_on.clone());
    let mut observed = Observed::new(move |jobs| follower(&jobs, &m, &g)).await;
    for _ in 0..2 {
        more.notify_one();
        settled().await;
    }
    // At work for 2 s of its own; the machine slept for a day, a debugger stopped it for an hour.
    for gap in [SECOND, 24 * 3600 * SECOND, SECOND, 3600 * SECOND] {
        assert_eq!(observed.after(gap), []);
    }
    let (seconds, ..) = observed.named().unwrap();
    assert!((14..=18).contains(&seconds), "the time it did run counts: {seconds}");
    observed.hive.kill();
}

/// A guard: a failing test must not leave a thread behind that its runtime would wait for.
struct Unblock(Arc<AtomicBool>);

impl Drop for Unblock {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn code_that_keeps_its_thread_is_named_in_any_job() {
    let blocked = Arc::new(AtomicBool::new(true));
    let _end = Unblock(blocked.clone());
    let block = blocked.clone();
    let mut observed = Observed::new(move |jobs| {
        let block = block.clone();
        jobs.one_shot("waits-for-a-lock", move |_| async move {
            while block.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        })
        .add();
        jobs.one_shot("patient", |cx: JobCx| async move {
            cx.cancelled().await;
            Ok(())
        })
        .add();
    })
    .await;
    let begin = Instant::now();
    while observed.hive.hive().health().at("m.job-waits-for-a-lock").is_none() {
        assert!(begin.elapsed() < DEADLINE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (seconds, job, reason) = observed.named().unwrap();
    assert!((18..=20).contains(&seconds), "{seconds}");
    assert_eq!((job.as_str(), reason), ("m.job-waits-for-a-lock", Reason::Blocked));
    blocked.store(false, Ordering::Relaxed);
    while !observed.after(SECOND).is_empty() {
        assert!(begin.elapsed() < DEADLINE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    observed.hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn runs_of_timers_and_items_of_observers_have_deadlines_by_themselves() {
    let mut observed = Observed::new(|jobs| {
        jobs.timer("gc", 10 * SECOND, |_| std::future::pending()).deadline(30 * SECOND).add();
        let items = futures::StreamExt::chain(futures::stream::iter([1]), futures::stream::pending());
        jobs.observer("events", items, |_, _| std::future::pending()).deadline(50 * SECOND).add();
    })
    .await;
    tokio::time::sleep(11 * SECOND).await;
    let mut named = std::collections::BTreeMap::new();
    for second in 0..60 {
        for stuck in observed.after(SECOND) {
            named.entry(stuck.job).or_insert((second, stuck.reason));
        }
    }
    let (gc, events) = (named["m.timer-job-gc"], named["m.observer-job-events"]);
    assert!((28..=30).contains(&gc.0) && (48..=50).contains(&events.0), "{gc:?} {events:?}");
    assert_eq!((gc.1, events.1), (Reason::Unfinished, Reason::Unfinished));
    observed.hive.kill();
}

#[tokio::test(start_paused = true)]
async fn a_timer_that_does_not_run_is_overdue() {
    let mut observed = Observed::new(|jobs| {
        jobs.timer("gc", 10 * SECOND, |_| async { Ok(()) }).add();
    })
    .await;
    // The runtime runs, so the timer does.
    for _ in 0..100 {
        tokio::time::sleep(SECOND).await;
        assert_eq!(observed.after(SECOND), []);
    }
    // The runtime does not run: nothing of this test yields.
    let (seconds, job, reason) = observed.named().unwrap();
    assert!((18..30).contains(&seconds), "{seconds}");
    assert_eq!((job.as_str(), reason), ("m.timer-job-gc", Reason::Overdue));
    tokio::time::sleep(11 * SECOND).await;
    assert_eq!(observed.after(SECOND), []);
    observed.hive.finish().await;
}

#[tokio::test]
async fn pending_work_is_named_and_idle_time_before_does_not_count() {
    let pending = Arc::new(AtomicBool::new(false));
    let has_work = pending.clone();
    let mut observed = Observed::new(move |jobs| {
        let has_work = has_work.clone();
        jobs.one_shot("reconcile", move |cx: JobCx| async move {
            cx.backlog(move || has_work.load(Ordering::Relaxed));
            cx.cancelled().await;
            Ok(())
        })
        .add();
    })
    .await;
    assert_eq!(observed.named(), None);
    pending.store(true, Ordering::Relaxed);
    let (seconds, _, reason) = observed.named().unwrap();
    assert!((18..20).contains(&seconds), "{seconds}");
    assert_eq!(reason, Reason::Backlog);
    pending.store(false, Ordering::Relaxed);
    assert_eq!(observed.after(SECOND), []);
    observed.hive.finish().await;
}

#[tokio::test]
async fn a_job_that_has_failed_for_good_is_named_until_it_is_replaced() {
    let group = Arc::new(parking_lot::Mutex::new(None));
    let keep = group.clone();
    let mut observed = Observed::new(move |jobs| {
        jobs.one_shot("follow", |_| async { anyhow::bail!("no more") }).add();
        *keep.lock() = Some(jobs);
    })
    .await;
    let stuck = observed.after(SECOND).remove(0);
    assert_eq!(
        (stuck.reason, stuck.to_string().as_str()),
        (Reason::Failed, "has failed and does not run any more")
    );
    let jobs = group.lock().take().unwrap();
    jobs.one_shot("follow", |cx: JobCx| async move {
        cx.cancelled().await;
        Ok(())
    })
    .add();
    assert_eq!(observed.after(SECOND), []);
    observed.hive.stop().await;
}

#[tokio::test]
async fn a_piece_of_work_may_have_its_own_deadline_and_report_steps() {
    let part = Arc::new(Notify::new());
    let parts = part.clone();
    let mut observed = Observed::new(move |jobs| {
        let parts = parts.clone();
        jobs.one_shot("load", move |cx: JobCx| async move {
            let working = cx.working_within(40 * SECOND);
            parts.notified().await;
            working.step();
            parts.notified().await;
            Ok(())
        })
        .add();
    })
    .await;
    for _ in 0..30 {
        assert_eq!(observed.after(SECOND), []);
    }
    part.notify_one();
    settled().await;
    let (seconds, ..) = observed.named().unwrap();
    assert!((38..40).contains(&seconds), "{seconds}");
    observed.hive.kill();
}

#[tokio::test]
async fn blocking_work_without_end_is_named_until_it_ends() {
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(parking_lot::Mutex::new(Some(wait)));
    let mut observed = Observed::new(move |jobs| {
        let wait = wait.lock().take().unwrap();
        jobs.one_shot("reads", move |cx: JobCx| async move {
            hive::blocking(move || wait.recv()).await?;
            cx.cancelled().await;
            Ok(())
        })
        .add();
    })
    .await;
    let (seconds, job, reason) = observed.named().unwrap();
    assert!((18..=20).contains(&seconds), "{seconds}");
    assert_eq!((job.as_str(), reason), ("m.job-reads", Reason::Unfinished));
    go_on.send(()).unwrap();
    while !observed.after(SECOND).is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(observed.named(), None);
    observed.hive.stop().await;
}
