//! Termination of the process by signals and timeouts, from a thread that no task of the process can block.

use std::future::pending;
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

#[cfg(not(unix))]
use interrupts::Signals;
#[cfg(unix)]
use posix::Signals;

/// The exit code of a start or stop that hangs.
const HANGS: i32 = 255;

/// The base of the exit status that a shell reports for a process killed by a signal.
const KILLED: i32 = 128;

/// The interval in which a second signal is a duplicate: a terminal or supervisor may signal both process and group.
const SAME: Duration = Duration::from_millis(100);

/// The timeout for logging the last line, because the log itself may be blocked.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// An operating system thread that receives SIGTERM and SIGINT and keeps a deadline. It has a runtime of its own: all
/// threads of the hive's runtime may be blocked, which is the case that the second signal and the deadline are for.
pub(crate) struct ProcessGuard {
    /// `None` only while it is dropped, which ends the thread.
    deadlines: Option<UnboundedSender<Option<Deadline>>>,
    thread: Option<JoinHandle<()>>,
}

/// The time at which the process ends, and its last message.
struct Deadline {
    at: Instant,
    last_words: Box<dyn FnOnce() + Send>,
}

/// An armed deadline of a [`ProcessGuard`]; dropping it disarms the deadline.
pub(crate) struct Armed(UnboundedSender<Option<Deadline>>);

impl ProcessGuard {
    /// Starts the thread. It calls `first` at the first signal and ends the process at the second.
    pub(crate) fn spawn(first: impl FnOnce(&'static str) + Send + 'static) -> io::Result<Self> {
        let (deadlines, received) = unbounded_channel();
        let (installed, ready) = mpsc::channel();
        let run = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(installed.send(Err(error))),
            };
            runtime.block_on(async move {
                match Signals::install() {
                    Ok(signals) => {
                        let _ = installed.send(Ok(()));
                        guard(signals, received, first).await;
                    }
                    Err(error) => drop(installed.send(Err(error))),
                }
            });
        };
        let thread = std::thread::Builder::new().name("process-guard".to_owned()).spawn(run)?;
        ready.recv().unwrap_or_else(|_| Err(io::Error::other("the thread for signals panicked")))?;
        Ok(ProcessGuard { deadlines: Some(deadlines), thread: Some(thread) })
    }

    /// Arms a deadline after which `last_words` is called and the process ends, unless the result is dropped before.
    pub(crate) fn exit_after(
        &self,
        limit: Duration,
        last_words: impl FnOnce() + Send + 'static,
    ) -> Option<Armed> {
        let deadlines = self.deadlines.clone()?;
        let deadline = Deadline { at: Instant::now() + limit, last_words: Box::new(last_words) };
        // Sending fails only if the guard's thread is gone, and then the process is ending anyway.
        deadlines.send(Some(deadline)).ok()?;
        Some(Armed(deadlines))
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        let _ = self.0.send(None);
    }
}

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        self.deadlines = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs until all senders of deadlines are gone.
async fn guard(
    mut signals: Signals,
    mut deadlines: UnboundedReceiver<Option<Deadline>>,
    first: impl FnOnce(&'static str),
) {
    let (mut first, mut last_signal) = (Some(first), Instant::now());
    let mut deadline: Option<Deadline> = None;
    loop {
        let due = deadline.as_ref().map(|deadline| deadline.at);
        let over = async {
            match due {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            // Changes of the deadline first: one that has just been disarmed must not end the process.
            biased;
            changed = deadlines.recv() => match changed {
                Some(changed) => deadline = changed,
                None => return,
            },
            (name, number) = signals.next() => match first.take() {
                Some(first) => {
                    last_signal = Instant::now();
                    first(name);
                }
                None if last_signal.elapsed() < SAME => {}
                None => exit(KILLED + number, move || {
                    tracing::error!(signal = name, "Second signal received, exiting at once");
                }),
            },
            () = over => {
                if let Some(Deadline { last_words, .. }) = deadline.take() {
                    exit(HANGS, last_words);
                }
            }
        }
    }
}

/// Ends the process after the last words, which get a dedicated thread: they may block on a log that is not read, or on
/// a lock.
#[expect(clippy::disallowed_methods, reason = "must end the process while the hive's own tasks hang")]
fn exit(code: i32, last_words: impl FnOnce() + Send + 'static) -> ! {
    let (finished, done) = mpsc::channel::<()>();
    let say = move || {
        last_words();
        drop(finished);
    };
    // Without a thread the message is lost.
    let _ = std::thread::Builder::new().name("last-words".to_owned()).spawn(say);
    let _ = done.recv_timeout(LAST_WORDS);
    std::process::exit(code)
}

#[cfg(unix)]
mod posix {
    use std::io;

    use tokio::signal::unix::{Signal, SignalKind, signal};

    /// The streams of SIGTERM and SIGINT.
    pub(super) struct Signals {
        terminate: Signal,
        interrupt: Signal,
    }

    impl Signals {
        pub(super) fn install() -> io::Result<Self> {
            Ok(Signals {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
            })
        }

        pub(super) async fn next(&mut self) -> (&'static str, i32) {
            tokio::select! {
                _ = self.terminate.recv() => ("terminated", SignalKind::terminate().as_raw_value()),
                _ = self.interrupt.recv() => ("interrupt", SignalKind::interrupt().as_raw_value()),
            }
        }
    }
}

#[cfg(not(unix))]
mod interrupts {
    use std::future::pending;
    use std::io;

    /// The number of SIGINT, for the exit status.
    const INTERRUPT: i32 = 2;

    /// Ctrl-C, the only signal of systems other than Unix.
    pub(super) struct Signals;

    impl Signals {
        pub(super) fn install() -> io::Result<Self> {
            Ok(Signals)
        }

        pub(super) async fn next(&mut self) -> (&'static str, i32) {
            match tokio::signal::ctrl_c().await {
                Ok(()) => ("interrupt", INTERRUPT),
                Err(_) => pending().await,
            }
        }
    }
}
