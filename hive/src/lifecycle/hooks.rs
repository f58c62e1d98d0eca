//! All hooks of a hive, and the jobs that were added after construction.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::State;
use super::run::{CancelSource, HookFn, HookRun, Limits, Never};
use crate::error::HookFailure;
use crate::event::{Events, HookId, Phase};
use crate::job::Running;

/// A hook; what has run is taken out.
pub(super) struct Hook {
    id: HookId,
    pub(super) start: Option<HookFn>,
    pub(super) stop: Option<HookFn>,
    pub(super) timeout: Option<Duration>,
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

    /// Adds an empty hook; `None` when it is too late.
    pub(super) fn add(&self, id: HookId) -> Option<usize> {
        let mut inner = self.inner.lock();
        if !matches!(inner.state, State::Built | State::Populated | State::Starting) {
            return None;
        }
        inner.hooks.push(Hook { id, start: None, stop: None, timeout: None });
        Some(inner.hooks.len() - 1)
    }

    /// Changes a hook that was added.
    pub(super) fn change(&self, index: usize, change: impl FnOnce(&mut Hook)) {
        if let Some(hook) = self.inner.lock().hooks.get_mut(index) {
            change(hook);
        }
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
