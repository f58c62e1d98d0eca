//! Start and stop hooks: registered while the graph is built, run one after the other.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::error::{HookError, HookFailure};
use crate::event::{Event, Events, HookId, Phase};
use crate::job::Running;

/// Where a hive is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Planned; no constructor has run.
    Built,
    /// All constructors have run.
    Populated,
    /// Start hooks are running.
    Starting,
    /// All start hooks have run.
    Started,
    /// Stop hooks are running.
    Stopping,
    /// Stopped in order.
    Stopped,
    /// Construction, start or stop failed.
    Failed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Built => "built",
            State::Populated => "populated",
            State::Starting => "starting",
            State::Started => "started",
            State::Stopping => "stopping",
            State::Stopped => "stopped",
            State::Failed => "failed",
        })
    }
}

/// What a hook gets: a token that is cancelled when the hook should give up.
#[derive(Clone, Debug)]
pub struct HookCx {
    token: CancellationToken,
}

impl HookCx {
    /// Ends when the hook should give up: its time is over or the start is cancelled.
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// Whether the hook should give up.
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// The token itself, for code that takes one.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }
}

type HookFn = Box<dyn FnOnce(HookCx) -> BoxFuture<'static, anyhow::Result<()>> + Send>;

struct Hook {
    id: HookId,
    start: Option<HookFn>,
    stop: Option<HookFn>,
    timeout: Option<Duration>,
}

/// All hooks of a hive, and the jobs that were added after construction.
pub(crate) struct Hooks {
    inner: Mutex<Inner>,
    runtime: OnceLock<tokio::runtime::Handle>,
    pub(crate) events: Arc<Events>,
}

struct Inner {
    hooks: Vec<Hook>,
    started: usize,
    state: State,
    jobs: Vec<Running>,
    tasks: Vec<tokio::task::AbortHandle>,
    current: Option<HookId>,
}

/// How hooks are run.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) deadline: Instant,
    pub(crate) limit: Duration,
    pub(crate) heartbeat: Duration,
}

/// Registers start and stop hooks for the constructor that takes it.
///
/// Hooks start in the order of construction, so after those of everything that the constructor depends on, and stop in
/// exactly the reverse order.
#[derive(Clone)]
pub struct Lifecycle {
    hooks: Arc<Hooks>,
    module: Arc<str>,
    function: &'static str,
}

impl Lifecycle {
    pub(crate) fn new(hooks: Arc<Hooks>, module: Arc<str>, function: &'static str) -> Self {
        Lifecycle { hooks, module, function }
    }

    /// Adds a hook, which the builder's methods fill. A hook may be added by a constructor or by another start hook;
    /// after the start it is refused with an error in the log.
    pub fn hook(&self, name: impl Into<Arc<str>>) -> HookBuilder {
        let id = HookId { name: name.into(), module: self.module.clone(), function: self.function };
        let mut inner = self.hooks.inner.lock();
        if !matches!(inner.state, State::Built | State::Populated | State::Starting) {
            drop(inner);
            self.hooks.events.emit(Event::HookTooLate { hook: id });
            return HookBuilder { hooks: self.hooks.clone(), index: usize::MAX };
        }
        inner.hooks.push(Hook { id, start: None, stop: None, timeout: None });
        HookBuilder { hooks: self.hooks.clone(), index: inner.hooks.len() - 1 }
    }
}

/// A hook that has been added; see [`Lifecycle::hook`].
pub struct HookBuilder {
    hooks: Arc<Hooks>,
    index: usize,
}

impl HookBuilder {
    /// What to do at the start.
    pub fn on_start<F, Fut>(self, f: F) -> Self
    where
        F: FnOnce(HookCx) -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        self.set(|hook| hook.start = Some(Box::new(move |cx| Box::pin(f(cx)))))
    }

    /// What to do at the stop, or when a later start hook fails. It is not called if this hook's own start failed.
    pub fn on_stop<F, Fut>(self, f: F) -> Self
    where
        F: FnOnce(HookCx) -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        self.set(|hook| hook.stop = Some(Box::new(move |cx| Box::pin(f(cx)))))
    }

    /// How long each of start and stop may take; the hive's own limits hold in any case.
    pub fn timeout(self, limit: Duration) -> Self {
        self.set(|hook| hook.timeout = Some(limit))
    }

    fn set(self, change: impl FnOnce(&mut Hook)) -> Self {
        if let Some(hook) = self.hooks.inner.lock().hooks.get_mut(self.index) {
            change(hook);
        }
        self
    }
}

/// Why a sequence of start hooks ended early.
pub(crate) struct StartFailure {
    pub(crate) failure: HookFailure,
    pub(crate) started: usize,
}

impl Hooks {
    pub(crate) fn new(events: Arc<Events>) -> Arc<Self> {
        let inner = Inner {
            hooks: vec![],
            started: 0,
            state: State::Built,
            jobs: vec![],
            tasks: vec![],
            current: None,
        };
        Arc::new(Hooks { inner: Mutex::new(inner), runtime: OnceLock::new(), events })
    }

    pub(crate) fn state(&self) -> State {
        self.inner.lock().state
    }

    pub(crate) fn set_state(&self, state: State) {
        self.inner.lock().state = state;
    }

    /// Keeps a job that was started outside of a start hook, so that it is stopped before any stop hook runs.
    pub(crate) fn adopt(&self, job: Running) {
        let mut inner = self.inner.lock();
        inner.jobs.retain(|job| !job.is_finished());
        inner.jobs.push(job);
    }

    /// Jobs run on the runtime on which the hive was populated, whoever adds them.
    pub(crate) fn use_current_runtime(&self) {
        let _already = self.runtime.set(tokio::runtime::Handle::current());
    }

    /// Starts a task and remembers it, so that none outlives the hive.
    pub(crate) fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::JoinHandle<()> {
        let task = self.runtime.get_or_init(tokio::runtime::Handle::current).spawn(task);
        let mut inner = self.inner.lock();
        inner.tasks.retain(|task| !task.is_finished());
        inner.tasks.push(task.abort_handle());
        task
    }

    /// The hook that is running.
    pub(crate) fn current(&self) -> Option<HookId> {
        self.inner.lock().current.clone()
    }

    /// Tasks of jobs that are still running.
    pub(crate) fn running_tasks(&self) -> usize {
        self.inner.lock().tasks.iter().filter(|task| !task.is_finished()).count()
    }

    /// Drops all tasks of jobs.
    pub(crate) fn abort_all(&self) {
        for task in self.inner.lock().tasks.drain(..) {
            task.abort();
        }
    }

    /// Runs the start hooks in order, also those added meanwhile. Hooks without a start count as started.
    pub(crate) async fn start(&self, limits: Limits, cancel: &dyn CancelSource) -> Result<(), StartFailure> {
        loop {
            let (id, start, own_limit, index) = {
                let mut inner = self.inner.lock();
                let index = inner.started;
                let Some(hook) = inner.hooks.get_mut(index) else {
                    inner.state = State::Started;
                    return Ok(());
                };
                let parts = (hook.id.clone(), hook.start.take(), hook.timeout, index);
                inner.current = Some(parts.0.clone());
                parts
            };
            if let Some(start) = start {
                let run = HookRun { phase: Phase::Start, id, own_limit, limits, events: &self.events };
                if let Err(failure) = run.execute(start, cancel).await {
                    return Err(StartFailure { failure, started: index });
                }
            }
            self.inner.lock().started += 1;
        }
    }

    /// Stops runtime jobs, the newest first, then runs the stop hooks of all started hooks in reverse order.
    pub(crate) async fn stop(&self, limits: Limits) -> Vec<HookFailure> {
        let mut failures = vec![];
        loop {
            let Some(job) = self.inner.lock().jobs.pop() else { break };
            job.stop(limits.deadline).await;
        }
        loop {
            let (id, stop, own_limit) = {
                let mut inner = self.inner.lock();
                let Some(index) = inner.started.checked_sub(1) else { break };
                inner.started = index;
                let hook = &mut inner.hooks[index];
                let parts = (hook.id.clone(), hook.stop.take(), hook.timeout);
                inner.current = Some(parts.0.clone());
                parts
            };
            let Some(stop) = stop else { continue };
            let run = HookRun { phase: Phase::Stop, id, own_limit, limits, events: &self.events };
            if let Err(failure) = run.execute(stop, &Never).await {
                failures.push(failure);
            }
        }
        self.abort_all();
        failures
    }
}

/// Something that may cancel a start.
pub(crate) trait CancelSource: Sync {
    fn is_cancelled(&self) -> bool;
    fn cancelled(&self) -> BoxFuture<'_, ()>;
}

struct Never;

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

/// How long a hook that is out of time may take to say why.
const LAST_WORDS: Duration = Duration::from_millis(100);

struct HookRun<'a> {
    phase: Phase,
    id: HookId,
    own_limit: Option<Duration>,
    limits: Limits,
    events: &'a Events,
}

impl HookRun<'_> {
    async fn execute(self, hook: HookFn, cancel: &dyn CancelSource) -> Result<(), HookFailure> {
        let begin = Instant::now();
        let result = self.attempt(hook, cancel, begin).await;
        let duration = begin.elapsed();
        let (phase, hook) = (self.phase, self.id.clone());
        match result {
            Ok(()) => {
                self.events.emit(Event::HookRan { phase, hook, duration });
                Ok(())
            }
            Err(reason) => {
                self.events.emit(Event::HookFailed { phase, hook, duration, error: reason.to_string() });
                Err(HookFailure {
                    phase,
                    hook: self.id.name.to_string(),
                    module: self.id.module.to_string(),
                    function: self.id.function.to_owned(),
                    elapsed: duration,
                    reason,
                })
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
        self.events.emit(Event::HookRuns { phase: self.phase, hook: self.id.clone() });
        let (until, limit) = match self.own_limit {
            Some(own) if begin + own < self.limits.deadline => (begin + own, own),
            _ => (self.limits.deadline, self.limits.limit),
        };
        let token = CancellationToken::new();
        let _drop_cancels = token.clone().drop_guard();
        let span = tracing::info_span!("cell", module = %self.id.module);
        let cx = HookCx { token: token.clone() };
        let running = catch(async move { hook(cx).await }).instrument(span);
        tokio::pin!(running);
        let mut beat = self.limits.heartbeat;
        loop {
            tokio::select! {
                biased;
                result = &mut running => return flatten(result),
                () = cancel.cancelled() => return Err(HookError::Cancelled),
                () = sleep_until(until) => {
                    token.cancel();
                    let last = timeout(LAST_WORDS, &mut running).await;
                    let own = last.ok().and_then(|result| result.ok()).and_then(Result::err);
                    return Err(HookError::TimedOut { limit, own });
                }
                () = sleep((begin + beat).saturating_duration_since(Instant::now())) => {
                    let (phase, hook) = (self.phase, self.id.clone());
                    self.events.emit(Event::HookStillRuns { phase, hook, elapsed: begin.elapsed() });
                    beat *= 2;
                }
            }
        }
    }
}

fn flatten(result: Result<anyhow::Result<()>, String>) -> Result<(), HookError> {
    match result {
        Ok(result) => result.map_err(HookError::Failed),
        Err(panic) => Err(HookError::Panicked(panic)),
    }
}

/// Runs a future and gives the message of its panic as an error.
pub(crate) async fn catch<F: Future>(future: F) -> Result<F::Output, String> {
    AssertUnwindSafe(future).catch_unwind().await.map_err(|panic| panic_text(&*panic))
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}
