//! Every step of a hive's lifecycle as a typed event; the log is derived from it.

use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::time::Instant;
use tracing::Dispatch;

use crate::lifecycle::panic_text;

/// Which hooks an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Start hooks.
    Start,
    /// Stop hooks.
    Stop,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Start => "start",
            Phase::Stop => "stop",
        })
    }
}

/// The trigger of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// It runs once, or until it succeeds.
    OneShot,
    /// Its interval, or a trigger.
    Timer,
    /// An item of its stream.
    Observer,
}

/// The hook that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct HookId {
    /// The name given to [`Lifecycle::hook`](crate::Lifecycle::hook).
    pub name: Arc<str>,
    /// The path of the module that registered it.
    pub module: Arc<str>,
    /// The constructor that registered it.
    pub function: &'static str,
    /// Where it is registered.
    pub at: &'static Location<'static>,
}

/// A step in the lifecycle of a hive.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A constructor or invocation has run.
    #[non_exhaustive]
    Constructed {
        /// Its path.
        function: &'static str,
        /// Its module.
        module: Arc<str>,
        /// The duration.
        duration: Duration,
    },
    /// The start begins.
    Starting,
    /// All constructors have run.
    #[non_exhaustive]
    Populated {
        /// The duration.
        duration: Duration,
    },
    /// All start hooks have run.
    #[non_exhaustive]
    Started {
        /// Time since the start began, construction included.
        duration: Duration,
        /// The number of hooks, without those of jobs.
        hooks: usize,
        /// The number of jobs started with them.
        jobs: usize,
    },
    /// The start failed or was cancelled; the call that started the hive returns the error.
    #[non_exhaustive]
    StartFailed {
        /// The error's text.
        error: String,
        /// Time since the start began.
        duration: Duration,
        /// Whether it was cancelled because of a shutdown request.
        cancelled: bool,
    },
    /// A hook begins.
    #[non_exhaustive]
    HookRuns {
        /// Start or stop.
        phase: Phase,
        /// The hook.
        hook: HookId,
    },
    /// A hook is still running.
    #[non_exhaustive]
    HookStillRuns {
        /// Start or stop.
        phase: Phase,
        /// The hook.
        hook: HookId,
        /// The time since it began.
        elapsed: Duration,
    },
    /// A hook has run.
    #[non_exhaustive]
    HookRan {
        /// Start or stop.
        phase: Phase,
        /// The hook.
        hook: HookId,
        /// The duration.
        duration: Duration,
    },
    /// A hook failed.
    #[non_exhaustive]
    HookFailed {
        /// Start or stop.
        phase: Phase,
        /// The hook.
        hook: HookId,
        /// The duration.
        duration: Duration,
        /// The error's text.
        error: String,
        /// Whether it was cancelled because of a shutdown request.
        cancelled: bool,
    },
    /// A hook was registered after the start and will not run.
    #[non_exhaustive]
    HookTooLate {
        /// The hook.
        hook: HookId,
    },
    /// A hook has neither a start nor a stop function, and no token: it has no effect.
    #[non_exhaustive]
    HookEmpty {
        /// The hook.
        hook: HookId,
    },
    /// The hooks that have started are stopped because the start failed.
    #[non_exhaustive]
    RollingBack {
        /// The count.
        hooks: usize,
    },
    /// The stop begins.
    Stopping,
    /// The stop has ended.
    #[non_exhaustive]
    Stopped {
        /// Time since the stop began.
        duration: Duration,
        /// The number of failed stop hooks.
        failed: usize,
    },
    /// A scope with a lifecycle of its own has started.
    #[non_exhaustive]
    ScopeStarted {
        /// The path of its module.
        scope: Arc<str>,
        /// The duration.
        duration: Duration,
    },
    /// A scope with a lifecycle of its own could not be started.
    #[non_exhaustive]
    ScopeFailed {
        /// The path of its module.
        scope: Arc<str>,
        /// The duration.
        duration: Duration,
        /// The error's text.
        error: String,
    },
    /// A scope with a lifecycle of its own has been stopped.
    #[non_exhaustive]
    ScopeStopped {
        /// The path of its module.
        scope: Arc<str>,
        /// The duration.
        duration: Duration,
        /// The number of failed stop hooks.
        failed: usize,
    },
    /// A signal arrived.
    #[non_exhaustive]
    Signal {
        /// Its name.
        name: &'static str,
    },
    /// A cell requested a shutdown.
    #[non_exhaustive]
    ShutdownRequested {
        /// The error's text, if it is because of one.
        error: Option<String>,
    },
    /// A background job begins.
    #[non_exhaustive]
    JobStarted {
        /// Its name.
        job: Arc<str>,
        /// Its module.
        module: Arc<str>,
    },
    /// A cell watches a configuration struct that never changes: none of its options is live.
    #[non_exhaustive]
    WatchIdle {
        /// The type of the struct.
        config: &'static str,
        /// The constructor that takes the watch.
        function: &'static str,
        /// Its module.
        module: Arc<str>,
    },
    /// A background job begins while another one of the same name and module runs: both report as one.
    #[non_exhaustive]
    JobNameTaken {
        /// Its name.
        job: Arc<str>,
        /// Its module.
        module: Arc<str>,
        /// Where it is added.
        at: &'static Location<'static>,
        /// Where the other one is added.
        other: &'static Location<'static>,
    },
    /// A background job has ended.
    #[non_exhaustive]
    JobEnded {
        /// Its name.
        job: Arc<str>,
        /// Its module.
        module: Arc<str>,
        /// The duration.
        duration: Duration,
    },
    /// A run of a background job has ended, successfully or not.
    #[non_exhaustive]
    JobRan {
        /// The kind of job.
        kind: JobKind,
        /// Its name, without the kind.
        job: Arc<str>,
        /// Its module.
        module: Arc<str>,
        /// The duration of the run.
        duration: Duration,
        /// Whether it failed.
        failed: bool,
    },
    /// A run of a background job failed.
    #[non_exhaustive]
    JobFailed {
        /// Its name.
        job: Arc<str>,
        /// Its module.
        module: Arc<str>,
        /// The error's text.
        error: String,
        /// The number of consecutive failures with this error. The log has the first, the 10th, the 100th...
        in_a_row: u64,
    },
    /// A background job was dropped because it did not end when cancelled.
    #[non_exhaustive]
    JobAborted {
        /// Its name.
        job: Arc<str>,
        /// Its module.
        module: Arc<str>,
        /// The grace period that it exceeded.
        grace: Duration,
    },
}

impl Event {
    /// Logs the event. Steps slower than `slow` are logged at level info,
    /// faster ones at debug.
    pub fn log(&self, slow: Duration) {
        use tracing::{debug, error, info, warn};
        macro_rules! timed {
            ($duration:expr, $($rest:tt)*) => {
                if *$duration >= slow { info!(duration = ?$duration, $($rest)*) } else { debug!(duration = ?$duration, $($rest)*) }
            };
        }
        match self {
            Event::Constructed { function, module, duration } => {
                timed!(duration, function, %module, "Constructed");
            }
            Event::Starting => info!("Starting hive"),
            Event::Populated { duration } => debug!(?duration, "Constructed all"),
            Event::Started { duration, hooks, jobs } => info!(?duration, hooks, jobs, "Started hive"),
            Event::StartFailed { error, duration, cancelled: true } => {
                info!(?duration, during = error, "Start cancelled");
            }
            Event::StartFailed { error, duration, cancelled: false } => {
                error!(?duration, error, "Failed to start hive");
            }
            Event::HookRuns { phase, hook } => {
                debug!(hook = %hook.name, function = hook.function, module = %hook.module, "Executing {phase} hook");
            }
            Event::HookStillRuns { phase, hook, elapsed } => {
                warn!(hook = %hook.name, function = hook.function, module = %hook.module, ?elapsed, "The {phase} hook is still running");
            }
            Event::HookRan { phase: Phase::Start, hook, duration } => {
                timed!(duration, hook = %hook.name, function = hook.function, module = %hook.module, "Start hook executed");
            }
            Event::HookRan { phase: Phase::Stop, hook, duration } => {
                timed!(duration, hook = %hook.name, function = hook.function, module = %hook.module, "Stop hook executed");
            }
            Event::HookFailed { phase, hook, duration, cancelled: true, .. } => {
                info!(hook = %hook.name, function = hook.function, module = %hook.module, ?duration, "Cancelled {phase} hook");
            }
            Event::HookFailed { phase: Phase::Start, hook, duration, error, .. } => {
                error!(hook = %hook.name, function = hook.function, module = %hook.module, ?duration, error, "Start hook failed");
            }
            Event::HookFailed { phase: Phase::Stop, hook, duration, error, .. } => {
                error!(hook = %hook.name, function = hook.function, module = %hook.module, ?duration, error, "Stop hook failed");
            }
            Event::HookTooLate { hook } => {
                error!(hook = %hook.name, function = hook.function, module = %hook.module, "Hook registered after the start is ignored");
            }
            Event::HookEmpty { hook } => {
                warn!(hook = %hook.name, at = %hook.at, module = %hook.module, "Hook has nothing to do");
            }
            Event::RollingBack { hooks } => info!(hooks, "Undoing the start"),
            Event::Stopping => info!("Stopping hive"),
            Event::Stopped { duration, failed: 0 } => info!(?duration, "Stopped hive"),
            Event::Stopped { duration, failed } => error!(?duration, failed, "Failed to stop hive"),
            Event::ScopeStarted { scope, duration } => info!(module = %scope, ?duration, "Started scope"),
            Event::ScopeFailed { scope, duration, error } => {
                error!(module = %scope, ?duration, error, "Failed to start scope");
            }
            Event::ScopeStopped { scope, duration, failed: 0 } => {
                info!(module = %scope, ?duration, "Stopped scope");
            }
            Event::ScopeStopped { scope, duration, failed } => {
                error!(module = %scope, ?duration, failed, "Failed to stop scope");
            }
            Event::Signal { name } => info!(signal = name, "Signal received"),
            Event::ShutdownRequested { error: None } => info!("Shutdown requested"),
            Event::ShutdownRequested { error: Some(error) } => error!(error, "Shutdown requested"),
            Event::JobStarted { job, module } => debug!(name = %job, %module, "Job started"),
            Event::WatchIdle { config, function, module } => {
                warn!(config, function, %module, "ConfigWatch of a struct without #[flag(live)] never changes: take Config");
            }
            Event::JobNameTaken { job, module, at, other } => {
                warn!(name = %job, %module, %at, %other, "Two jobs of one name report as one");
            }
            Event::JobEnded { job, module, duration } => {
                debug!(name = %job, %module, ?duration, "Job stopped")
            }
            Event::JobRan { kind, job, module, duration, failed } => {
                tracing::trace!(?kind, name = %job, %module, ?duration, failed, "Job ran");
            }
            Event::JobFailed { job, module, error, in_a_row: 1 } => {
                warn!(name = %job, %module, error, "Job failed");
            }
            Event::JobFailed { job, module, error, in_a_row } if is_power_of_ten(*in_a_row) => {
                warn!(name = %job, %module, error, in_a_row, "Job failed again");
            }
            Event::JobFailed { job, module, error, in_a_row } => {
                debug!(name = %job, %module, error, in_a_row, "Job failed again");
            }
            Event::JobAborted { job, module, grace } => {
                warn!(name = %job, %module, ?grace, "Job did not stop in time and was dropped");
            }
        }
    }
}

fn is_power_of_ten(n: u64) -> bool {
    n.checked_ilog10().is_some_and(|exponent| 10_u64.pow(exponent) == n)
}

/// A function that receives an event and its time.
pub(crate) type Observer = Arc<dyn Fn(&Event, Instant) + Send + Sync>;

/// The events of one hive: synchronous observers, and subscriptions of later receivers.
pub struct Events {
    observers: Mutex<Arc<Vec<Observer>>>,
    /// The number of observers: without any, an event takes no lock.
    observed: AtomicUsize,
    /// Created by the first subscription.
    live: OnceLock<broadcast::Sender<Event>>,
    slow: Duration,
    log: Option<Dispatch>,
}

impl Events {
    pub(crate) fn new(observers: Vec<Observer>, slow: Duration, log: Option<Dispatch>) -> Arc<Self> {
        let observed = AtomicUsize::new(observers.len());
        let observers = Mutex::new(Arc::new(observers));
        Arc::new(Events { observers, observed, live: OnceLock::new(), slow, log })
    }

    /// Returns the subscriber for the log of this hive, if it is not that of the thread.
    pub(crate) fn log(&self) -> Option<&Dispatch> {
        self.log.as_ref()
    }

    /// Returns the span around all code of a module.
    pub(crate) fn span(&self, module: &str) -> tracing::Span {
        self.logged(|| tracing::info_span!("cell", module = %module))
    }

    /// Returns the span around a job, which is no child of the span of the hook that starts it.
    pub(crate) fn job_span(&self, module: &str, job: &str) -> tracing::Span {
        self.logged(|| tracing::info_span!(parent: None, "cell", module = %module, job = %job))
    }

    fn logged<T>(&self, log: impl FnOnce() -> T) -> T {
        match &self.log {
            Some(own) => tracing::dispatcher::with_default(own, log),
            None => log(),
        }
    }

    /// Returns a receiver of the events from now on. A receiver that falls more than 256 events behind gets the number
    /// of missed ones.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.live.get_or_init(|| broadcast::channel(256).0).subscribe()
    }

    /// Calls a function with each event from now on, in order; none is missed. It must not block.
    pub fn observe(&self, observer: impl Fn(&Event) + Send + Sync + 'static) {
        let mut observers = self.observers.lock();
        let added: Observer = Arc::new(move |event, _| observer(event));
        self.set(&mut observers, |all| all.push(added));
    }

    /// Detaches the first observer: the one that only records the start.
    pub(crate) fn detach_first(&self) {
        let mut observers = self.observers.lock();
        self.set(&mut observers, |all| drop(all.drain(..1.min(all.len()))));
    }

    /// Changes the list; an event that is being delivered still uses the previous one.
    fn set(&self, observers: &mut Arc<Vec<Observer>>, change: impl FnOnce(&mut Vec<Observer>)) {
        let mut all = observers.to_vec();
        change(&mut all);
        self.observed.store(all.len(), Ordering::Release);
        *observers = Arc::new(all);
    }

    #[cfg(test)]
    pub(crate) fn observed(&self) -> usize {
        self.observed.load(Ordering::Acquire)
    }

    pub(crate) fn emit(&self, event: Event) {
        self.emit_at(&event, Instant::now());
    }

    /// Emits an event with a known time; see [`emit`](Events::emit).
    pub(crate) fn emit_at(&self, event: &Event, at: Instant) {
        self.logged(|| event.log(self.slow));
        if self.observed.load(Ordering::Acquire) > 0 {
            let observers = self.observers.lock().clone();
            for observer in observers.iter() {
                // An observer's panic must not fail the code that emits the event.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| observer(event, at))) {
                    tracing::error!(error = panic_text(&*panic), ?event, "An observer of events panicked");
                }
            }
        }
        if let Some(live) = self.live.get() {
            let _nobody_listens_any_more = live.send(event.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn observers_and_subscribers_see_the_same() {
        let seen = Arc::new(Mutex::new(vec![]));
        let sink = seen.clone();
        let events = Events::new(
            vec![Arc::new(move |e: &Event, _| sink.lock().push(e.clone()))],
            Duration::ZERO,
            None,
        );
        let mut live = events.subscribe();
        events.emit(Event::Starting);
        assert_eq!(*seen.lock(), [Event::Starting]);
        assert_eq!(live.recv().await, Ok(Event::Starting));
    }

    /// Else every run of a job would take the lock of the observers and that of the timeline.
    #[tokio::test]
    async fn after_the_start_an_event_takes_no_lock() {
        let mut hive = crate::Hive::builder([]).build().unwrap();
        assert_eq!(hive.events().observed(), 1, "the timeline");
        hive.start().await.unwrap();
        assert_eq!(hive.events().observed(), 0);
        let seen = Arc::new(Mutex::new(vec![]));
        let sink = seen.clone();
        hive.events().observe(move |event| sink.lock().push(event.clone()));
        hive.stop().await.unwrap();
        assert_eq!(seen.lock().len(), 2, "an observer that comes later sees the stop");
    }
}
