//! The jobs of one constructor.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::progress::Track;
use super::{Backoff, JobHandle, ObserverJob, OneShotJob, Running, TimerJob, Working};
use crate::error::HiveError;
use crate::event::{Event, JobKind};
use crate::handles::{Handles, Shared};
use crate::health::{Health, Level};
use crate::lifecycle::{Lifecycle, State, catch};

/// The grace period of a job after cancellation.
const GRACE: Duration = Duration::from_secs(5);

/// The context of a job.
#[derive(Clone)]
pub struct JobCx {
    /// The reporter of this job. Its reports in a run are kept: a run that reports nothing and succeeds is reported as
    /// `OK (1.2s)` for a timer, `Finished (1.2s)` for a one-shot, `17 items` for an observer. A one-shot that succeeds
    /// after it reported is stopped with its message, or stays degraded if its last report says so. A failure is always
    /// reported.
    pub health: Health,
    token: CancellationToken,
    pub(crate) track: Arc<Track>,
}

impl JobCx {
    /// Waits until the job is cancelled.
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// Whether the job is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Marks the job as working until the guard is dropped, which must happen before its deadline.
    ///
    /// For jobs with a loop of their own: hold the guard while there is work, not while waiting for events.
    ///
    /// ```
    /// # use hive::prelude::*;
    /// async fn follow(mut events: tokio::sync::mpsc::Receiver<u32>, cx: JobCx) -> anyhow::Result<()> {
    ///     while let Some(Some(event)) = cx.token().run_until_cancelled(events.recv()).await {
    ///         let _working = cx.working();
    ///         println!("{event}"); // if this hangs, the job counts as stuck
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn working(&self) -> Working {
        self.track.begin(None)
    }

    /// Marks the job as working, with a deadline for this piece of work; see [`working`](JobCx::working).
    pub fn working_within(&self, deadline: Duration) -> Working {
        self.track.begin(Some(deadline))
    }

    /// Sets the function that detects pending work. If it returns true until the job's deadline while the job makes no
    /// step, the job counts as stuck. It is called once a second from another thread, so it should be cheap. Only the
    /// first call has an effect.
    pub fn backlog(&self, has_work: impl Fn() -> bool + Send + Sync + 'static) {
        self.track.backlog(Box::new(has_work));
    }

    /// Returns the token, for code that takes one.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }
}

/// Adds background jobs to the module of the constructor that takes it.
///
/// The methods return a builder; its `add` adds the job. In health, in the
/// log and among the hooks a job `gc` of a module `m` is `m.job-gc`, `m.timer-job-gc` or `m.observer-job-gc`.
#[derive(Clone)]
pub struct JobGroup {
    pub(super) shared: Arc<Shared>,
    lifecycle: Lifecycle,
    health: Health,
    pub(super) module: Arc<str>,
}

impl fmt::Debug for JobGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobGroup").field("module", &self.module).finish_non_exhaustive()
    }
}

impl JobGroup {
    pub(crate) fn new(handles: &Handles<'_>) -> Self {
        let shared = handles.shared.clone();
        let module = handles.module.clone();
        JobGroup {
            lifecycle: Lifecycle::new(shared.hooks.clone(), module.clone(), handles.function, handles.node),
            health: Health::of_module(shared.health.clone(), &module),
            shared,
            module,
        }
    }

    /// Returns the same group, whose jobs report their health below this name.
    pub fn child(&self, name: &str) -> JobGroup {
        JobGroup { health: self.health.child(name), ..self.clone() }
    }

    /// Adds a job that runs once, to its end or until it is cancelled.
    #[track_caller]
    pub fn one_shot<F, Fut>(&self, name: impl Into<String>, f: F) -> OneShotJob
    where
        F: FnOnce(JobCx) -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        OneShotJob::once(self, name.into(), f)
    }

    /// Adds a job that is retried after each failure, until it succeeds, is out of retries, or is cancelled.
    #[track_caller]
    pub fn one_shot_with_retry<F, Fut>(&self, name: impl Into<String>, backoff: Backoff, f: F) -> OneShotJob
    where
        F: FnMut(JobCx) -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        OneShotJob::retried(self, name.into(), backoff, f)
    }

    /// Adds a job that runs every `interval`, the first time after one interval; with an interval of zero only when
    /// triggered. A run that takes longer does not shift the following ones; missed ticks are skipped.
    #[track_caller]
    pub fn timer<F, Fut>(&self, name: impl Into<String>, interval: Duration, f: F) -> TimerJob
    where
        F: FnMut(JobCx) -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        TimerJob::new(self, name.into(), interval, f)
    }

    /// Adds a job that runs for each item of a stream, one after the other, until the stream ends.
    ///
    /// Tables are streams (`statedb::Table::observe`); tokio channels become streams by `tokio_stream::wrappers`, or
    /// like this:
    ///
    /// ```
    /// # use hive::prelude::*;
    /// fn follow(jobs: &JobGroup, orders: tokio::sync::mpsc::Receiver<u32>) {
    ///     let stream = futures::stream::unfold(orders, |mut orders| async { Some((orders.recv().await?, orders)) });
    ///     jobs.observer("orders", stream, |cx, order| async move {
    ///         cx.health.ok(format!("order {order}"));
    ///         Ok(())
    ///     }).add();
    /// }
    /// ```
    #[track_caller]
    pub fn observer<S, F, Fut>(&self, name: impl Into<String>, stream: S, f: F) -> ObserverJob
    where
        S: Stream + Send + 'static,
        S::Item: Send,
        F: FnMut(JobCx, S::Item) -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        ObserverJob::new(self, name.into(), stream, f)
    }
}

/// Properties that all kinds of jobs share.
pub(crate) struct Spec {
    pub(crate) group: JobGroup,
    kind: JobKind,
    at: &'static Location<'static>,
    /// The name without its kind: `gc`.
    bare: String,
    pub(crate) grace: Duration,
    pub(crate) deadline: Option<Duration>,
    pub(crate) shutdown_on_error: bool,
    /// Whether it runs on a dedicated thread.
    pub(crate) own_thread: bool,
}

/// The maximum length of a job's name, in bytes.
const MAX_NAME: usize = 100;

/// Returns a name of letters, digits, `-` and `_`: other characters become `-`. A name that is changed or truncated
/// gets a hash (FNV-1a) of the original as suffix, so that it differs from similar ones.
fn sanitized(name: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.len() <= MAX_NAME && name.chars().all(allowed) {
        return name.to_owned();
    }
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let kept: String =
        name.chars().map(|c| if allowed(c) { c } else { '-' }).take(MAX_NAME - 11 + 1).collect();
    format!("{}-{:010x}", &kept[..kept.len().min(MAX_NAME - 11)], hash >> 24)
}

/// The whole lifecycle of a job as a future.
pub(crate) type Body = Box<dyn FnOnce(Env) -> BoxFuture<'static, ()> + Send>;

/// The function of a job that runs several times.
pub(super) type Run = Box<dyn FnMut(JobCx) -> BoxFuture<'static, anyhow::Result<()>> + Send>;

/// The state of the loop around a job's function.
#[derive(Clone)]
pub(crate) struct Env {
    pub(crate) cx: JobCx,
    kind: JobKind,
    pub(super) bare: Arc<str>,
    /// The kind and the name: `timer-job-gc`.
    pub(super) name: Arc<str>,
    shutdown_on_error: bool,
    pub(super) group: JobGroup,
}

impl Env {
    /// Runs the job's function once; errors and panics are counted as failures and logged. An error after cancellation
    /// is ignored, as is one whose cause is that the hive is stopping.
    pub(crate) async fn attempt<Fut>(&self, run: impl FnOnce() -> Fut) -> Result<(), anyhow::Error>
    where
        Fut: Future<Output = anyhow::Result<()>>,
    {
        let begin = Instant::now();
        let _before = self.cx.health.heard();
        let result = catch(async { run().await }).await;
        let well = match &result {
            Ok(Ok(())) => true,
            Ok(Err(error)) => self.cx.is_cancelled() || self.meets_stop(error),
            Err(_panic) => false,
        };
        self.group.shared.events.emit(Event::JobRan {
            kind: self.kind,
            job: self.bare.clone(),
            module: self.group.module.clone(),
            duration: begin.elapsed(),
            failed: !well,
        });
        let error = match result {
            Ok(Ok(())) => {
                self.cx.track.well();
                return Ok(());
            }
            Ok(Err(_)) if well => return Ok(()),
            Ok(Err(error)) => error,
            Err(panic) => anyhow::anyhow!("panicked: {panic}"),
        };
        self.emit_failed(&error);
        Err(error)
    }

    /// Whether a job fails only because a dependency of it was stopped first.
    fn meets_stop(&self, error: &anyhow::Error) -> bool {
        let refused = || error.chain().any(|e| e.downcast_ref().is_some_and(HiveError::is_stopping));
        self.group.shared.stops() && refused()
    }

    fn emit_failed(&self, error: &anyhow::Error) {
        let (job, module) = (self.name.clone(), self.group.module.clone());
        let error = crate::error::with_causes(error);
        let in_a_row = self.cx.track.again(&error);
        self.group.shared.events.emit(Event::JobFailed { job, module, error, in_a_row });
    }

    /// Records a panic outside of the job's function, such as in the stream of an observer: the job is over.
    pub(super) fn broke(self, panic: &str) {
        let error = anyhow::anyhow!("panicked: {panic}");
        self.emit_failed(&error);
        self.cx.health.degraded("Failed", &error);
        self.cx.track.failed();
        self.give_up(error);
    }

    /// Reports a successful end. If the job has reported (`has_reported`), its last report is kept, even a degraded
    /// one, unless the job was cancelled.
    pub(crate) fn ended(&self, has_reported: bool, last_word: impl fmt::Display) {
        let health = &self.cx.health;
        match has_reported {
            true if health.level() == Some(Level::Degraded) && !self.cx.is_cancelled() => {}
            true => health.stopped(last_word),
            false => health.finished(last_word),
        }
    }

    /// Runs the job's function once as a piece of work with a deadline; see [`attempt`](Env::attempt).
    pub(crate) async fn work<Fut>(&self, run: impl FnOnce() -> Fut) -> Result<(), anyhow::Error>
    where
        Fut: Future<Output = anyhow::Result<()>>,
    {
        let _working = self.cx.working();
        self.attempt(run).await
    }

    /// Shuts the hive down with the error if the job is configured to.
    pub(crate) fn give_up(&self, error: anyhow::Error) {
        if self.shutdown_on_error {
            let job = &self.name;
            let module = &self.group.module;
            self.group.shared.shutdown.shutdown_with(error.context(format!("{job} of module `{module}`")));
        }
    }
}

impl Spec {
    #[track_caller]
    pub(crate) fn new(group: &JobGroup, kind: JobKind, name: &str) -> Self {
        Spec {
            group: group.clone(),
            kind,
            at: Location::caller(),
            bare: sanitized(name),
            grace: GRACE,
            deadline: None,
            shutdown_on_error: false,
            own_thread: false,
        }
    }

    /// Adds the job: as a hook before the start, at once after it, and not at all once the stop has begun.
    pub(crate) fn submit(self, body: Body) -> JobHandle {
        let Spec { group, kind, at, bare, grace, deadline, shutdown_on_error, own_thread } = self;
        let prefix = match kind {
            JobKind::OneShot => "job",
            JobKind::Timer => "timer-job",
            JobKind::Observer => "observer-job",
        };
        let name: Arc<str> = format!("{prefix}-{bare}").into();
        let health = group.health.child(&name);
        let handle = JobHandle::new(grace);
        let track = Track::new(&health, handle.token(), at);
        if let Some(deadline) = deadline {
            track.deadline(deadline);
        }
        let cx = JobCx { health, token: handle.token().clone(), track };
        let env =
            Env { cx, kind, bare: bare.into(), name: name.clone(), shutdown_on_error, group: group.clone() };
        let hooks = group.shared.hooks.clone();
        match hooks.state() {
            State::Built | State::Populated => {
                let running: Arc<Mutex<Option<Running>>> = Arc::default();
                let (started, job) = (running.clone(), handle.clone());
                // Moved into the hook: if the hook never runs, dropping it ends the handle, so that waiters are
                // released.
                let unused = handle.ends_when_dropped();
                let start = move |_| async move {
                    *started.lock() = Some(Running::spawn(env, body, job, own_thread));
                    unused.disarm();
                    Ok(())
                };
                let stop = move |_| async move {
                    let running = running.lock().take();
                    if let Some(running) = running {
                        running.stop(None).await;
                    }
                    Ok(())
                };
                group.lifecycle.hook(name).job().on_start(start).on_stop(stop).add();
            }
            State::Starting | State::Started => {
                hooks.adopt(Running::spawn(env, body, handle.clone(), own_thread))
            }
            State::Stopping | State::Stopped | State::Failed => handle.end(),
        }
        handle
    }
}

#[cfg(test)]
mod tests {
    use super::sanitized;

    #[test]
    fn names_are_bounded_and_stay_different() {
        assert_eq!(sanitized("sync_policymap-17"), "sync_policymap-17");
        assert_eq!(sanitized(&"a".repeat(100)), "a".repeat(100));
        let (dot, slash) = (sanitized("a.b"), sanitized("a/b"));
        assert!(dot.starts_with("a-b-") && dot.len() == 14, "{dot}");
        assert_ne!(dot, slash);
        for long in ["a".repeat(101), "\u{e4}".repeat(300)] {
            let name = sanitized(&long);
            assert!(name.len() <= 100 && name.is_ascii(), "{name}");
        }
        assert_ne!(sanitized(&"a".repeat(101)), sanitized(&"a".repeat(102)));
    }
}
