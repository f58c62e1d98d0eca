//! Jobs as seen from outside: their health and their lines in the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::StreamExt;
use hive::LogLevel;
use hive::prelude::*;
use parking_lot::Mutex;
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

async fn started(add: impl Fn(JobGroup) + Send + Sync + 'static) -> TestHive {
    let mut hive = TestHive::new(module("m", "x", invoke(add)));
    hive.start().await;
    hive
}

#[tokio::test(start_paused = true)]
async fn reports_of_a_run_are_kept() {
    let mut hive = started(|jobs| {
        let turn = AtomicU32::new(0);
        jobs.timer("timer", SECOND, move |cx| {
            let run = turn.fetch_add(1, Ordering::SeqCst);
            async move {
                match run {
                    0 => cx.health.ok("half of it"),
                    1 => cx.health.degraded("half of it", "disk full"),
                    _ => {}
                }
                Ok(())
            }
        })
        .add();
        jobs.one_shot("one", |cx| async move {
            cx.health.ok("12 rules");
            Ok(())
        })
        .add();
        jobs.one_shot("half", |cx| async move {
            cx.health.degraded("half of it", "disk full");
            Ok(())
        })
        .add();
        let mut failed = false;
        jobs.one_shot_with_retry("retried", Backoff::constant(SECOND), move |cx| {
            let fails = !std::mem::replace(&mut failed, true);
            async move {
                if fails {
                    anyhow::bail!("refused");
                }
                cx.health.ok("connected");
                Ok(())
            }
        })
        .add();
        let items = futures::stream::iter(1..=2).chain(futures::stream::once(async {
            sleep(20 * SECOND).await;
            3
        }));
        let items = items.chain(futures::stream::pending());
        jobs.observer("observer", items, |cx, item| async move {
            if item == 1 {
                cx.health.degraded("half of it", "disk full");
            }
            Ok(())
        })
        .add();
        jobs.observer("short", futures::stream::iter([1]), |cx, _| async move {
            cx.health.ok("at revision 1");
            Ok(())
        })
        .add();
    })
    .await;
    let report_of = |hive: &TestHive, job: &str| {
        let status = hive.health(&format!("m.{job}"));
        (status.level, status.message, status.last_word)
    };
    let of = |level, message: &str, last: &str| (level, message.to_owned(), last.to_owned());
    sleep(SECOND / 2).await;
    assert_eq!(report_of(&hive, "job-one"), of(Level::Stopped, "12 rules", "Finished (0.0ns)"));
    assert_eq!(report_of(&hive, "job-half"), of(Level::Degraded, "half of it", ""));
    assert_eq!(report_of(&hive, "observer-job-observer"), of(Level::Degraded, "half of it", ""));
    assert_eq!(
        report_of(&hive, "observer-job-short"),
        of(Level::Stopped, "at revision 1", "Stream ended after 1 items")
    );
    sleep(SECOND).await;
    assert_eq!(report_of(&hive, "timer-job-timer"), of(Level::Ok, "half of it", ""));
    sleep(SECOND).await;
    assert_eq!(report_of(&hive, "timer-job-timer"), of(Level::Degraded, "half of it", ""));
    assert_eq!(report_of(&hive, "job-retried"), of(Level::Stopped, "connected", "Finished (0.0ns)"));
    sleep(SECOND).await;
    assert_eq!(report_of(&hive, "timer-job-timer"), of(Level::Ok, "OK (0.0ns)", ""));
    sleep(20 * SECOND).await;
    assert_eq!(report_of(&hive, "observer-job-observer"), of(Level::Ok, "3 items", ""));
    hive.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_degraded_job_that_is_cancelled_is_stopped() {
    let mut hive = started(|jobs| {
        jobs.one_shot("follows", |cx| async move {
            cx.health.degraded("half of it", "disk full");
            cx.cancelled().await;
            Ok(())
        })
        .add();
    })
    .await;
    sleep(SECOND).await;
    hive.stop().await;
    let status = hive.health("m.job-follows");
    assert_eq!((status.level, status.message.as_str()), (Level::Stopped, "half of it"));
}

#[tokio::test(start_paused = true)]
async fn a_different_failure_is_logged_again() {
    let mut hive = started(|jobs| {
        let turn = AtomicU32::new(0);
        jobs.timer("gc", SECOND, move |_| {
            let run = turn.fetch_add(1, Ordering::SeqCst) + 1;
            async move {
                match run {
                    1..=100 => anyhow::bail!("no route"),
                    101..=105 => anyhow::bail!("refused"),
                    106 => Ok(()),
                    _ => anyhow::bail!("refused"),
                }
            }
        })
        .add();
    })
    .await;
    sleep(109 * SECOND + SECOND / 2).await;
    hive.stop().await;
    let lines = hive.logs();
    let warned = lines.iter().filter(|line| line.level == LogLevel::WARN).map(ToString::to_string);
    let warned: Vec<String> =
        warned.map(|line| line.split_once("error=").unwrap().1.trim_end().to_owned()).collect();
    assert_eq!(warned, ["no route", "no route in_a_row=10", "no route in_a_row=100", "refused", "refused"]);
}

#[tokio::test(start_paused = true)]
async fn duplicate_job_names_are_logged_as_a_warning() {
    let line = line!() + 6;
    let mut hive = started(|jobs| {
        let wait = |cx: JobCx| async move {
            cx.cancelled().await;
            Ok(())
        };
        jobs.one_shot("sync", wait).add();
        jobs.one_shot("sync", wait).add();
        jobs.one_shot("other", wait).add();
        jobs.child("x").one_shot("sync", wait).add();
        // Another kind of job has another name.
        jobs.timer("sync", SECOND, |_| async { Ok(()) }).add();
    })
    .await;
    sleep(SECOND).await;
    let warning = hive.logged(LogLevel::WARN, "Two jobs of one name report as one name=job-sync").to_string();
    assert_eq!(hive.logs().iter().filter(|line| line.level == LogLevel::WARN).count(), 1);
    for line in [line, line + 1] {
        assert!(warning.contains(&format!("hive/tests/all/job_reports.rs:{line}:")), "{warning}");
    }
    hive.stop().await;
}

/// A writer that records its input, for a log that shows spans.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn the_line_of_a_job_names_its_module_once() {
    let lines = Lines::default();
    let writer = lines.clone();
    let log = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    let _log = tracing::subscriber::set_default(log);
    let cells = module(
        "work",
        "x",
        invoke(|jobs: JobGroup| {
            jobs.one_shot("consume", |_| async {
                tracing::info!("consumes");
                Ok(())
            })
            .add();
        }),
    );
    let mut hive = Hive::builder(cells).build().unwrap();
    hive.start().await.unwrap();
    sleep(SECOND).await;
    hive.stop().await.unwrap();
    let text = String::from_utf8(lines.0.lock().clone()).unwrap();
    let line = text.lines().find(|line| line.contains("consumes")).unwrap();
    assert!(line.contains(" cell{module=work job=consume}: "), "{line}");
}
