//! Execution of one hook: within its limits, its panics caught, cancelled together with the start.

use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, poll};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::Instrument;

use super::HookCx;
use crate::error::{HookError, HookFailure};
use crate::event::{Event, Events, HookId, Phase};

pub(super) type HookFn = Box<dyn FnOnce(HookCx) -> BoxFuture<'static, anyhow::Result<()>> + Send>;

/// The settings by which hooks are run.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) deadline: Instant,
    pub(crate) limit: Duration,
    pub(crate) heartbeat: Duration,
}

impl Limits {
    /// Returns limits that begin at a moment and last for `limit`.
    pub(crate) fn new(begin: Instant, limit: Duration, heartbeat: Duration) -> Self {
        Limits { deadline: begin + limit, limit, heartbeat }
    }

    fn until(&self, set_by: &'static str) -> Until {
        Until { at: self.deadline, limit: self.limit, set_by }
    }
}

/// The time at which a hook exceeds its limit.
struct Until {
    at: Instant,
    limit: Duration,
    /// The method that has set the limit.
    set_by: &'static str,
}

/// Something that may cancel a start.
pub(crate) trait CancelSource: Sync {
    fn is_cancelled(&self) -> bool;
    fn cancelled(&self) -> BoxFuture<'_, ()>;
}

/// The source for a stop, which nothing cancels.
pub(super) struct Never;

impl CancelSource for Never {
    fn is_cancelled(&self) -> bool {
        false
    }

    fn cancelled(&self) -> BoxFuture<'_, ()> {
        Box::pin(futures::future::pending())
    }
}

impl CancelSource for crate::shutdown::Shutdowner {
    fn is_cancelled(&self) -> bool {
        self.is_shutting_down()
    }

    fn cancelled(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.requested())
    }
}

/// The grace period in which a hook that exceeded its limit may return its error.
const LAST_WORDS: Duration = Duration::from_millis(100);

pub(super) struct HookRun<'a> {
    pub(super) phase: Phase,
    pub(super) id: HookId,
    pub(super) own_limit: Option<Duration>,
    pub(super) limits: Limits,
    pub(super) events: &'a Events,
}

/// Ends the context of a hook together with the hook.
struct Ends(HookCx);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.end();
    }
}

tokio::task_local! {
    /// The phase of the hook that runs this code.
    static PHASE: Phase;
}

/// Whether the caller is code of a start hook.
pub(crate) fn in_start_hook() -> bool {
    PHASE.try_with(|phase| *phase == Phase::Start).unwrap_or(false)
}

/// The outcome of a hook: its result, or the message of its panic.
type Ran = Result<anyhow::Result<()>, String>;

impl HookRun<'_> {
    pub(super) async fn execute(self, hook: HookFn, cancel: &dyn CancelSource) -> Result<(), HookFailure> {
        let begin = Instant::now();
        let result = self.attempt(hook, cancel, begin).await;
        let end = Instant::now();
        let duration = end - begin;
        let result = result.and_then(|()| self.in_time(begin, duration));
        let HookRun { phase, id: hook, events, .. } = self;
        match result {
            Ok(()) => {
                events.emit_at(&Event::HookRan { phase, hook, duration }, end);
                Ok(())
            }
            Err(reason) => {
                let (error, cancelled) = (reason.to_string(), matches!(reason, HookError::Cancelled));
                let failure = HookFailure::new(phase, &hook, duration, reason);
                events.emit(Event::HookFailed { phase, hook, duration, error, cancelled });
                Err(failure)
            }
        }
    }

    async fn attempt(
        &self,
        hook: HookFn,
        cancel: &dyn CancelSource,
        begin: Instant,
    ) -> Result<(), HookError> {
        if cancel.is_cancelled() {
            return Err(HookError::Cancelled);
        }
        if begin >= self.limits.deadline {
            return Err(HookError::NotRun);
        }
        self.events.emit_at(&Event::HookRuns { phase: self.phase, hook: self.id.clone() }, begin);
        let own = Ends(HookCx::default());
        let cx = own.0.clone();
        let span = self.events.span(&self.id.module);
        let run = PHASE.scope(self.phase, async move { hook(cx).await });
        let mut running = pin!(catch(run).instrument(span));
        // Most hooks are ready at the first poll, so timers and heartbeats are only set up for those that are not.
        match poll!(running.as_mut()) {
            Poll::Ready(ran) => flatten(ran),
            Poll::Pending => self.wait(running, &own.0, cancel, begin).await,
        }
    }

    /// Returns the earlier of the two limits.
    fn until(&self, begin: Instant) -> Until {
        match (self.own_limit, self.phase) {
            (Some(limit), _) if begin + limit < self.limits.deadline => {
                Until { at: begin + limit, limit, set_by: "HookBuilder::timeout" }
            }
            (_, Phase::Start) => self.limits.until("HiveBuilder::start_timeout"),
            (_, Phase::Stop) => self.limits.until("HiveBuilder::stop_timeout"),
        }
    }

    /// Returns the result of a hook. One that finishes after the time at which the hive would have stopped waiting has
    /// blocked the thread of its caller.
    fn in_time(&self, begin: Instant, took: Duration) -> Result<(), HookError> {
        let Until { at, limit, .. } = self.until(begin);
        match begin + took <= at + LAST_WORDS {
            true => Ok(()),
            false => Err(HookError::Late { took, limit }),
        }
    }

    /// Waits for a hook within its limits.
    async fn wait(
        &self,
        mut running: Pin<&mut (impl Future<Output = Ran> + Send)>,
        cx: &HookCx,
        cancel: &dyn CancelSource,
        begin: Instant,
    ) -> Result<(), HookError> {
        let Until { at, limit, set_by } = self.until(begin);
        let mut cancelled = cancel.cancelled();
        let mut over = pin!(sleep_until(at));
        let mut beat = self.limits.heartbeat;
        loop {
            tokio::select! {
                biased;
                ran = &mut running => return flatten(ran),
                () = &mut cancelled => return Err(HookError::Cancelled),
                () = &mut over => {
                    cx.token().cancel();
                    let last = timeout(LAST_WORDS, running).await;
                    let own = last.ok().and_then(Result::ok).and_then(Result::err);
                    return Err(HookError::TimedOut { limit, set_by, own });
                }
                () = sleep_until(begin + beat) => {
                    let (phase, hook) = (self.phase, self.id.clone());
                    self.events.emit(Event::HookStillRuns { phase, hook, elapsed: begin.elapsed() });
                    beat *= 2;
                }
            }
        }
    }
}

fn flatten(ran: Ran) -> Result<(), HookError> {
    match ran {
        Ok(result) => result.map_err(HookError::Failed),
        Err(panic) => Err(HookError::Panicked(panic)),
    }
}

/// Runs a future and returns the message of its panic as an error.
pub(crate) async fn catch<F: Future>(future: F) -> Result<F::Output, String> {
    AssertUnwindSafe(future).catch_unwind().await.map_err(|panic| panic_text(&*panic))
}

/// Returns the message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}
