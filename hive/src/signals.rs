//! Signals that stop a process.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// SIGTERM and SIGINT, caught from now on.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// What a shell reports for a process that a signal ended.
const KILLED: i32 = 128;

/// What comes so soon after a signal is that signal once more: to the process, and to its group.
const SAME: Duration = Duration::from_millis(100);

impl Signals {
    pub(crate) fn install() -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> (&'static str, i32) {
        tokio::select! {
            _ = self.terminate.recv() => ("terminated", SignalKind::terminate().as_raw_value()),
            _ = self.interrupt.recv() => ("interrupt", SignalKind::interrupt().as_raw_value()),
        }
    }

    /// Calls `first` at the first signal and ends the process at the second.
    #[expect(clippy::disallowed_methods, reason = "must answer while the hive's own tasks hang")]
    pub(crate) fn watch(mut self, first: impl FnOnce(&'static str) + Send + 'static) -> AbortOnDrop {
        AbortOnDrop(tokio::spawn(async move {
            let (name, _) = self.next().await;
            first(name);
            let begin = Instant::now();
            let (name, number) = loop {
                let signal = self.next().await;
                if begin.elapsed() >= SAME {
                    break signal;
                }
            };
            tracing::error!(signal = name, "Second signal received, exiting at once");
            std::process::exit(KILLED + number);
        }))
    }
}

/// Calls `last_words` and ends the process when the time is over, unless the guard is dropped before.
#[expect(clippy::disallowed_methods, reason = "must act while the hive's own tasks hang")]
pub(crate) fn exit_after(limit: Duration, last_words: impl FnOnce() + Send + 'static) -> AbortOnDrop {
    AbortOnDrop(tokio::spawn(async move {
        tokio::time::sleep(limit).await;
        last_words();
        std::process::exit(255);
    }))
}

/// A task that ends with its owner.
pub(crate) struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
