//! What could not be written is written later: a job, and a row of health.

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

/// How long what has failed waits before it is tried again: soon, as a full disk may be cleaned at any time, and never
/// so long that somebody who has cleaned it has to wait.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How often is looked whether another process has removed what was put aside.
const LOOK: Duration = Duration::from_secs(5);

/// Writes a file, or some of one kind, whenever it is woken, and again until that has worked. What is to be written
/// stays in the memory of its owner. At the stop of the agent it is tried once more.
///
/// The row `FILE` of the module's health is degraded as long as a write fails, and after a damaged file was put aside
/// until that was removed.
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
    /// Why the last write failed.
    failure: Option<String>,
    /// What was put aside, where to, and what follows from it.
    aside: Option<(PathBuf, String)>,
}

impl std::fmt::Debug for Rewrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Rewrite").field(&self.row.file).field(&*self.row.state.lock()).finish()
    }
}

impl Rewrite {
    /// Has a job write. `file` names row and job; `write` runs where it may block, and writes what there is then.
    pub fn new<W, E>(jobs: &JobGroup, health: &Health, file: &str, write: W) -> Rewrite
    where
        W: Fn() -> Result<(), E> + Send + Sync + 'static,
        E: Display + 'static,
    {
        let wake = Arc::new(Notify::new());
        let row = Row { health: health.scope(file), file: file.into(), state: Mutex::default() };
        row.tell();
        let rewrite = Rewrite { wake, row: Arc::new(row) };
        let job = rewrite.clone();
        jobs.one_shot(format!("write-{file}"), move |cx: JobCx| job.run(Arc::new(write), cx));
        rewrite
    }

    /// Has the job write.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Somebody has tried to write: the job takes over what has failed.
    pub fn tried(&self, result: &Result<(), Error>) {
        let first = self.row.tried(result.as_ref().map_err(ToString::to_string).copied());
        if first {
            self.wake();
        }
    }

    /// A damaged file was put aside, with this consequence. Row and log say so.
    pub fn put_aside(&self, error: &Error, kept: &Path, consequence: &str) {
        let file = &*self.row.file;
        tracing::error!(file, %error, kept = %kept.display(), consequence, "A state file is damaged; it was put aside");
        let text = format!(
            "{error}; it was put aside as {}; {consequence}; remove it once it is looked at",
            kept.display()
        );
        self.row.state.lock().aside = Some((kept.to_owned(), text));
        self.row.tell();
    }

    async fn run<W, E>(self, write: Arc<W>, cx: JobCx) -> anyhow::Result<()>
    where
        W: Fn() -> Result<(), E> + Send + Sync + 'static,
        E: Display + 'static,
    {
        let mut backoff = Backoff::exponential(RETRY.0, RETRY.1);
        let mut retry = None;
        loop {
            let aside = self.row.state.lock().aside.as_ref().map(|(kept, _)| kept.clone());
            tokio::select! {
                () = self.wake.notified() => {}
                Some(()) = OptionFuture::from(retry.map(tokio::time::sleep)) => {}
                Some(()) = OptionFuture::from(aside.as_ref().map(|_| tokio::time::sleep(LOOK))) => {
                    self.row.look();
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
        // Whoever has woken it just now counts, too.
        let woken = tokio::time::timeout(Duration::ZERO, self.wake.notified()).await.is_ok();
        if woken || retry.is_some() {
            self.row.tried(attempt(&write).await);
        }
        Ok(())
    }
}

impl Row {
    /// Returns whether it is the first failure since the last success.
    fn tried(&self, result: Result<(), String>) -> bool {
        let before = std::mem::replace(&mut self.state.lock().failure, result.as_ref().err().cloned());
        let file = &*self.file;
        let first = before.is_none() && result.is_err();
        match &result {
            Err(error) if first => {
                tracing::warn!(file, error, "A state file cannot be written, trying again")
            }
            Ok(()) if before.is_some() => tracing::info!(file, "The state file is written again"),
            _ => {}
        }
        if before != result.err() {
            self.tell();
        }
        first
    }

    /// Forgets what was put aside if it is gone.
    fn look(&self) {
        let gone = |(kept, _): &mut (PathBuf, String)| kept.symlink_metadata().is_err();
        if self.state.lock().aside.take_if(gone).is_some() {
            self.tell();
        }
    }

    fn tell(&self) {
        let state = self.state.lock();
        match (&state.failure, &state.aside) {
            (Some(error), _) => self.health.degraded("Unable to write, trying again", error),
            (None, Some((_, text))) => self.health.degraded("Damaged, begun anew", text),
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
