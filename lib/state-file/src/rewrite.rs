//! A job that retries failed writes, and its row of health.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::OptionFuture;
use hive::job::Backoff;
use hive::prelude::*;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::Error;

/// Shortest and longest delay of a retry. The upper bound is small, so that an operator who has freed disk space need
/// not wait.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Interval of the check whether the operator has removed the quarantined file.
const QUARANTINE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A job that writes a file, or several of one kind, whenever it is woken, and retries with backoff until that
/// succeeds. The owner keeps the content in memory. At the stop of the agent a pending write is tried once more.
///
/// The row `FILE` of the module's health is degraded as long as writes fail, and from the quarantine of a damaged file
/// until that file is removed.
#[derive(Clone)]
pub struct Rewrite {
    wake: Arc<Notify>,
    row: Arc<Row>,
}

struct Row {
    health: Health,
    file: Box<str>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Error of the last write.
    failure: Option<String>,
    /// Path of the quarantined file, and the text for health with the consequence.
    quarantined: Option<(PathBuf, String)>,
}

impl std::fmt::Debug for Rewrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Rewrite").field(&self.row.file).field(&*self.row.state.lock()).finish()
    }
}

impl Rewrite {
    /// Starts the job. `file` names row and job; `write` runs on a blocking thread and writes the content of that
    /// moment.
    pub fn new<W, E>(jobs: &JobGroup, health: &Health, file: &str, write: W) -> Rewrite
    where
        W: Fn() -> Result<(), E> + Send + Sync + 'static,
        E: Display + 'static,
    {
        let wake = Arc::new(Notify::new());
        let row = Row { health: health.child(file), file: file.into(), state: Mutex::default() };
        row.publish();
        let rewrite = Rewrite { wake, row: Arc::new(row) };
        let job = rewrite.clone();
        jobs.one_shot(format!("write-{file}"), move |cx: JobCx| job.run(Arc::new(write), cx)).add();
        rewrite
    }

    /// Wakes the job, which then writes.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Records the result of a write that the caller has made itself; the job retries a failed one.
    pub fn tried(&self, result: &Result<(), Error>) {
        let first = self.row.tried(result.as_ref().map_err(ToString::to_string).copied());
        if first {
            self.wake();
        }
    }

    /// Reports the quarantine of a damaged file, with its consequence, in health and log.
    pub fn put_aside(&self, error: &Error, kept: &Path, consequence: &str) {
        let file = &*self.row.file;
        tracing::error!(file, %error, kept = %kept.display(), consequence, "A damaged state file was quarantined");
        let text = format!(
            "{error}; it was quarantined as {}; {consequence}; remove it after inspection",
            kept.display()
        );
        self.row.state.lock().quarantined = Some((kept.to_owned(), text));
        self.row.publish();
    }

    async fn run<W, E>(self, write: Arc<W>, cx: JobCx) -> anyhow::Result<()>
    where
        W: Fn() -> Result<(), E> + Send + Sync + 'static,
        E: Display + 'static,
    {
        let mut backoff = Backoff::exponential(RETRY_DELAYS.0, RETRY_DELAYS.1);
        let mut retry = None;
        loop {
            let quarantined = self.row.state.lock().quarantined.as_ref().map(|(kept, _)| kept.clone());
            tokio::select! {
                () = self.wake.notified() => {}
                Some(()) = OptionFuture::from(retry.map(tokio::time::sleep)) => {}
                Some(()) = OptionFuture::from(quarantined.as_ref().map(|_| tokio::time::sleep(QUARANTINE_CHECK_INTERVAL))) => {
                    self.row.check_quarantine();
                    continue;
                }
                () = cx.cancelled() => break,
            }
            retry = match attempt(&write).await {
                Ok(()) => {
                    backoff.reset();
                    self.row.tried(Ok(()));
                    None
                }
                Err(error) => {
                    self.row.tried(Err(error));
                    backoff.next_wait()
                }
            };
        }
        // A wake-up that raced with the stop still needs its write.
        let woken = tokio::time::timeout(Duration::ZERO, self.wake.notified()).await.is_ok();
        if woken || retry.is_some() {
            self.row.tried(attempt(&write).await);
        }
        Ok(())
    }
}

impl Row {
    /// Records a result; returns whether it is the first failure since the last success.
    fn tried(&self, result: Result<(), String>) -> bool {
        let before = std::mem::replace(&mut self.state.lock().failure, result.as_ref().err().cloned());
        let file = &*self.file;
        let first = before.is_none() && result.is_err();
        match &result {
            Err(error) if first => {
                tracing::warn!(file, error, "A state file cannot be written, retrying")
            }
            Ok(()) if before.is_some() => tracing::info!(file, "The state file is written again"),
            _ => {}
        }
        if before != result.err() {
            self.publish();
        }
        first
    }

    /// Clears the report of a quarantined file once that was removed.
    fn check_quarantine(&self) {
        let gone = |(kept, _): &mut (PathBuf, String)| kept.symlink_metadata().is_err();
        if self.state.lock().quarantined.take_if(gone).is_some() {
            self.publish();
        }
    }

    /// Writes the state into the row of health.
    fn publish(&self) {
        let state = self.state.lock();
        match (&state.failure, &state.quarantined) {
            (Some(error), _) => self.health.degraded("Unable to write, retrying", error),
            (None, Some((_, text))) => self.health.degraded("Damaged, replaced by a new file", text),
            (None, None) => self.health.ok("Written"),
        }
    }
}

async fn attempt<W, E>(write: &Arc<W>) -> Result<(), String>
where
    W: Fn() -> Result<(), E> + Send + Sync + 'static,
    E: Display + 'static,
{
    let write = write.clone();
    hive::blocking(move || write().map_err(|error| error.to_string())).await
}
