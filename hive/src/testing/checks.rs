//! Observations and assertions of tests about a hive.

use std::panic::Location;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Record, Stage, TestHive, fail, fail_at};
use crate::event::{Event, Phase};
use crate::health::{Level, Status};

/// The timeout of an awaited condition.
const PATIENCE: Duration = Duration::from_secs(30);

/// The number of log lines that are printed when a test fails.
const PRINTED: usize = 300;

/// The number of log lines that are shown when an awaited condition times out.
const LAST: usize = 8;

impl TestHive {
    /// Returns the health report at a path such as `announcer`, `announcer.job-sync`, `announcer.timer-job-gc`.
    #[track_caller]
    pub fn health(&self, path: &str) -> Status {
        let tree = self.hive().health();
        let Some(status) = tree.at(path) else {
            let known: Vec<_> = tree.snapshot().iter().map(Status::path).collect();
            fail("no health report", &format_args!("{path}; there are {known:?}"))
        };
        status
    }

    /// Checks that no reporter is degraded.
    #[track_caller]
    pub fn assert_healthy(&self) {
        let tree = self.hive().health();
        let degraded = tree.snapshot().into_iter().filter(|status| status.level == Level::Degraded);
        let degraded: Vec<String> = degraded
            .map(|status| format!("{}: {}: {}", status.path(), status.message, status.error))
            .collect();
        if !degraded.is_empty() {
            fail("degraded", &degraded.join("\n  "));
        }
    }

    /// Waits until a condition on the hive's log, health or tables holds. Fails after 30 s of tokio's clock, and prints
    /// the health reports and the last log lines.
    #[track_caller]
    pub fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) -> impl Future<Output = ()> {
        let at = Location::caller();
        async move {
            let deadline = Instant::now() + PATIENCE;
            while !is_so() {
                if Instant::now() >= deadline {
                    let state = self.state();
                    fail_at("in vain", at, &format_args!("waited for half a minute: {what}{state}"));
                }
                sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// Returns the reported health and the last lines of the log.
    fn state(&self) -> String {
        let health = match &self.stage {
            Stage::Hive(hive) => hive.health().snapshot(),
            Stage::Builder(_) | Stage::Gone => vec![],
        };
        let health = health.iter().map(|status| {
            let words = [&*status.message, &*status.error].join(" ");
            format!("\n  health {}: {:?} {}", status.path(), status.level, words.trim_end())
        });
        let lines = self.printed();
        let last = lines[lines.len().saturating_sub(LAST)..].iter().map(|record| format!("\n  log {record}"));
        health.chain(last).collect()
    }

    /// Returns the names of the start hooks that have run, in order; jobs are called `job-..`, `timer-job-..`.
    pub fn hook_order(&self) -> Vec<String> {
        self.ran(Phase::Start)
    }

    /// Returns the names of the stop hooks that have run, in order.
    pub fn stop_order(&self) -> Vec<String> {
        self.ran(Phase::Stop)
    }

    fn ran(&self, wanted: Phase) -> Vec<String> {
        let name = |event: &Event| match event {
            Event::HookRan { phase, hook, .. } if *phase == wanted => Some(hook.name.to_string()),
            _ => None,
        };
        self.events.lock().iter().filter_map(name).collect()
    }

    /// Checks that these start hooks have run in this order; other hooks may have run in between.
    #[track_caller]
    pub fn assert_started_in_order<'a>(&self, hooks: impl IntoIterator<Item = &'a str>) {
        in_order("start hooks", hooks, &self.hook_order());
    }

    /// Checks that these stop hooks have run in this order; other hooks may have run in between.
    #[track_caller]
    pub fn assert_stopped_in_order<'a>(&self, hooks: impl IntoIterator<Item = &'a str>) {
        in_order("stop hooks", hooks, &self.stop_order());
    }

    /// Returns the log of this hive, oldest first: its last 20,000 lines of every level.
    pub fn logs(&self) -> Vec<Record> {
        self.logs.records()
    }

    /// Whether a line of this level with this text has been logged; the text is searched in the message and its fields
    /// as [`Record`] prints them: `Allocated address=10.0.0.7`.
    pub fn has_logged(&self, level: tracing::Level, text: &str) -> bool {
        self.logs.records().iter().any(|record| is(record, level, text))
    }

    /// Checks that a line of this level with this text has been logged, and returns the last one.
    #[track_caller]
    pub fn logged(&self, level: tracing::Level, text: &str) -> Record {
        let Some(found) = self.logs.records().into_iter().rfind(|record| is(record, level, text)) else {
            let same: Vec<String> =
                self.logs().iter().filter(|record| record.level == level).map(Record::to_string).collect();
            fail("not logged", &format_args!("{level} `{text}`; there are:\n  {}", same.join("\n  ")))
        };
        found
    }

    /// Checks that no warning and no error has been logged.
    #[track_caller]
    pub fn assert_no_warning(&self) {
        let bad: Vec<String> = self
            .logs()
            .iter()
            .filter(|record| record.level <= tracing::Level::WARN)
            .map(Record::to_string)
            .collect();
        if !bad.is_empty() {
            fail("logged", &bad.join("\n  "));
        }
    }

    /// Returns the lines to print: those of level info and above, or of the level in `RUST_LOG`.
    fn printed(&self) -> Vec<Record> {
        let wanted = std::env::var("RUST_LOG").ok().and_then(|level| level.parse().ok());
        let wanted = wanted.unwrap_or(tracing::Level::INFO);
        self.logs().into_iter().filter(|record| record.level <= wanted).collect()
    }

    #[expect(clippy::print_stderr, reason = "the output of a test that fails")]
    pub(super) fn print_logs(&self) {
        let records = self.printed();
        let skipped = records.len().saturating_sub(PRINTED);
        if !records.is_empty() {
            eprintln!("--- log of the hive ({skipped} older lines left out; RUST_LOG=debug shows more)");
        }
        records[skipped..].iter().for_each(|record| eprintln!("{record}"));
    }
}

fn is(record: &Record, level: tracing::Level, text: &str) -> bool {
    record.level == level && record.to_string().contains(text)
}

#[track_caller]
fn in_order<'a>(what: &str, wanted: impl IntoIterator<Item = &'a str>, ran: &[String]) {
    let mut rest = ran.iter();
    for hook in wanted {
        if !rest.any(|name| name == hook) {
            let why = if ran.iter().any(|name| name == hook) { "ran earlier" } else { "did not run" };
            fail("out of order", &format_args!("`{hook}` {why}; {what}: {ran:?}"));
        }
    }
}
