//! All hooks of a hive, and the jobs that were added after construction.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinHandle};
use tracing::instrument::WithSubscriber;

use super::order::{self, Along, Order, Place, Uses};
use super::run::{CancelSource, HookFn, HookRun, Limits, Never};
use super::{State, panic_text};
use crate::error::{HiveError, HookError, HookFailure};
use crate::event::{Event, Events, HookId, Phase};
use crate::job::Running;

/// A hook; functions that have run are taken out.
pub(super) struct Hook {
    id: HookId,
    pub(super) place: Place,
    pub(super) start: Option<HookFn>,
    pub(super) stop: Option<HookFn>,
    pub(super) timeout: Option<Duration>,
}

impl Hook {
    pub(super) fn new(id: HookId, node: usize) -> Self {
        Hook { id, place: Place { node, ..Place::default() }, start: None, stop: None, timeout: None }
    }

    /// Whether it has neither functions nor an effect on the order of hooks.
    fn is_empty(&self) -> bool {
        let Place { brings, awaits, .. } = &self.place;
        self.start.is_none() && self.stop.is_none() && brings.is_empty() && awaits.is_empty()
    }
}

/// All hooks of a hive, and the jobs that were added after construction.
pub(crate) struct Hooks {
    inner: Mutex<Inner>,
    runtime: OnceLock<tokio::runtime::Handle>,
    pub(crate) events: Arc<Events>,
}

struct Inner {
    hooks: Vec<Hook>,
    /// Hooks that have started and not been stopped, in the order of their start.
    started: Vec<usize>,
    state: State,
    jobs: Vec<Running>,
    /// Tasks of jobs.
    tasks: Vec<Task>,
    /// Whether all tasks have been dropped, after which no more are started.
    is_closed: bool,
    /// Hooks that are running.
    current: Vec<usize>,
}

/// A task that must not outlive the hive.
struct Task {
    id: TaskId,
    handle: AbortHandle,
}

/// A task, by its name and the module that owns it.
#[derive(Clone)]
pub(crate) struct TaskId {
    pub(crate) name: Arc<str>,
    pub(crate) module: Arc<str>,
}

/// The cause of an early end of a sequence of start hooks.
pub(crate) struct StartFailure {
    pub(crate) failure: HookFailure,
    pub(crate) started: usize,
}

impl StartFailure {
    /// Returns the error, with the errors of the rollback.
    pub(crate) fn into_error(self, rollback: Vec<HookFailure>) -> HiveError {
        let StartFailure { failure, started } = self;
        match failure.reason {
            HookError::Cancelled => {
                let during = format!("start hook `{}` of module `{}`", failure.hook, failure.module);
                HiveError::Cancelled { during, rollback }
            }
            _ => HiveError::Start { failure: Box::new(failure), rolled_back: started, rollback },
        }
    }
}

/// The order of start hooks.
pub(crate) struct Ordering<'a> {
    pub(crate) uses: &'a (dyn Fn() -> Uses + Sync),
    /// A seed for any legal order instead of that of registration.
    pub(crate) shuffle: Option<u64>,
}

impl Hooks {
    /// Creates an empty list with capacity for about this many hooks.
    pub(crate) fn new(events: Arc<Events>, expected: usize) -> Arc<Self> {
        let inner = Inner {
            hooks: Vec::with_capacity(expected),
            started: Vec::with_capacity(expected),
            state: State::Built,
            jobs: vec![],
            tasks: vec![],
            is_closed: false,
            current: vec![],
        };
        Arc::new(Hooks { inner: Mutex::new(inner), runtime: OnceLock::new(), events })
    }

    /// Adds a hook, unless the start is over.
    pub(super) fn add(&self, hook: Hook) {
        if hook.is_empty() {
            self.events.emit(Event::HookEmpty { hook: hook.id.clone() });
        }
        let mut inner = self.inner.lock();
        if matches!(inner.state, State::Built | State::Populated | State::Starting) {
            inner.hooks.push(hook);
            return;
        }
        // Emitted without the lock: an observer of events may call back into this list.
        drop(inner);
        self.events.emit(Event::HookTooLate { hook: hook.id });
    }

    pub(crate) fn state(&self) -> State {
        self.inner.lock().state
    }

    pub(crate) fn set_state(&self, state: State) {
        self.inner.lock().state = state;
    }

    /// Keeps a job that was started outside of a start hook, so that it is stopped before any stop hook runs. Once the
    /// stop has begun the job is dropped.
    pub(crate) fn adopt(&self, job: Running) {
        let mut inner = self.inner.lock();
        if !inner.is_closed && matches!(inner.state, State::Starting | State::Started) {
            push_among(&mut inner.jobs, job, Running::is_finished);
        }
    }

    /// Makes jobs run on the current runtime, on which the hive is populated, whatever thread adds them.
    pub(crate) fn use_current_runtime(&self) {
        let _already = self.runtime.set(tokio::runtime::Handle::current());
    }

    /// Spawns a task and records it, so that it cannot outlive the hive.
    pub(crate) fn spawn(
        &self,
        id: TaskId,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let runtime = self.runtime.get_or_init(tokio::runtime::Handle::current);
        let task = match self.events.log() {
            Some(log) => runtime.spawn(task.with_subscriber(log.clone())),
            None => runtime.spawn(task),
        };
        let mut inner = self.inner.lock();
        if inner.is_closed {
            task.abort();
        }
        push_among(&mut inner.tasks, Task { id, handle: task.abort_handle() }, |task| {
            task.handle.is_finished()
        });
        task
    }

    /// Returns the hooks that are running.
    pub(crate) fn current(&self) -> Vec<HookId> {
        let inner = self.inner.lock();
        inner.current.iter().filter_map(|hook| Some(inner.hooks.get(*hook)?.id.clone())).collect()
    }

    /// Returns the tasks that are still running.
    pub(crate) fn running_tasks(&self) -> Vec<TaskId> {
        let inner = self.inner.lock();
        inner.tasks.iter().filter(|task| !task.handle.is_finished()).map(|task| task.id.clone()).collect()
    }

    /// Drops all tasks as soon as their code returns to the runtime; tasks that are spawned later are dropped at once.
    pub(crate) fn abort_all(&self) {
        let mut inner = self.inner.lock();
        inner.is_closed = true;
        for task in &inner.tasks {
            task.handle.abort();
        }
    }

    /// Drops all tasks, and the hooks that have not run: they may hold a reference cycle with the hive's objects.
    pub(crate) fn end(&self) {
        self.abort_all();
        let mut inner = self.inner.lock();
        inner.started.clear();
        let hooks = std::mem::take(&mut inner.hooks);
        // Dropped after the lock is released: values that the hooks hold may call back into this list when dropped.
        drop(inner);
        drop(hooks);
    }

    /// Drops the start hooks that have not run, once none will, so that waiters for their jobs are released.
    pub(crate) fn drop_pending(&self) {
        let mut inner = self.inner.lock();
        let start = |hook: &mut Hook| Some((hook.id.clone(), hook.start.take()?));
        let pending: Vec<(HookId, HookFn)> = inner.hooks.iter_mut().filter_map(start).collect();
        drop(inner);
        for (hook, start) in pending {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(start))) {
                let (error, HookId { name, module, .. }) = (panic_text(&*panic), hook);
                tracing::error!(error, %name, %module, "A start hook panicked when it was dropped");
            }
        }
    }

    /// Runs the start hooks, including hooks that are added meanwhile, which come last. Hooks without a start function
    /// count as started.
    pub(crate) async fn start(
        &self,
        ordering: Ordering<'_>,
        limits: Limits,
        cancel: &dyn CancelSource,
    ) -> Result<(), StartFailure> {
        let result = self.start_all(ordering, limits, cancel).await;
        if result.is_err() {
            self.drop_pending();
        }
        let mut inner = self.inner.lock();
        inner.current.clear();
        result.map_err(|failure| StartFailure { failure, started: inner.started.len() })
    }

    async fn start_all(
        &self,
        ordering: Ordering<'_>,
        limits: Limits,
        cancel: &dyn CancelSource,
    ) -> Result<(), HookFailure> {
        let places = self.places();
        match sequence(&places, &ordering).map_err(|circle| self.circle(&circle))? {
            Sequence::Registered => self.one_by_one(0..places.len(), limits, cancel).await?,
            Sequence::Reordered(sequence) => self.one_by_one(sequence, limits, cancel).await?,
            Sequence::Parallel(order, sequence) => {
                self.side_by_side(order, &sequence, &places, limits, cancel).await?;
            }
        }
        let mut next = places.len();
        while !self.is_started(next) {
            self.start_one(next, limits, cancel).await?;
            next += 1;
        }
        Ok(())
    }

    /// Ends the start if there are no more than `hooks` hooks; returns whether it did. Both happen under one lock, so
    /// no hook can be added in between and be missed.
    fn is_started(&self, hooks: usize) -> bool {
        let mut inner = self.inner.lock();
        let all = inner.hooks.len() <= hooks;
        if all {
            inner.state = State::Started;
        }
        all
    }

    /// Returns the number of started hooks without those of jobs, and that of jobs.
    pub(crate) fn started(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        let jobs = inner.hooks.iter().filter(|hook| hook.place.along == Along::Job).count();
        (inner.hooks.len() - jobs, jobs)
    }

    /// Returns the places of all hooks.
    fn places(&self) -> Vec<Place> {
        self.inner.lock().hooks.iter().map(|hook| hook.place.clone()).collect()
    }

    /// Returns the error of hooks that wait for each other.
    fn circle(&self, rest: &[usize]) -> HookFailure {
        let inner = self.inner.lock();
        let waiting: Vec<&Hook> =
            rest.iter().map(|at| &inner.hooks[*at]).filter(|hook| !hook.place.awaits.is_empty()).collect();
        let names = waiting.iter().map(|hook| hook.id.name.to_string()).collect();
        let id = waiting.first().map_or_else(|| inner.hooks[rest[0]].id.clone(), |hook| hook.id.clone());
        HookFailure::new(Phase::Start, &id, Duration::ZERO, HookError::Circle { hooks: names })
    }

    async fn one_by_one(
        &self,
        hooks: impl IntoIterator<Item = usize>,
        limits: Limits,
        cancel: &dyn CancelSource,
    ) -> Result<(), HookFailure> {
        for hook in hooks {
            self.start_one(hook, limits, cancel).await?;
        }
        Ok(())
    }

    /// Runs hooks concurrently along the graph. One that is not parallel waits for all before it, and all after it wait
    /// for it. The first failure drops those that are running.
    async fn side_by_side(
        &self,
        mut order: Order,
        sequence: &[usize],
        places: &[Place],
        limits: Limits,
        cancel: &dyn CancelSource,
    ) -> Result<(), HookFailure> {
        let mut position = vec![0; sequence.len()];
        sequence.iter().enumerate().for_each(|(at, hook)| position[*hook] = at);
        let alone: Vec<usize> =
            (0..sequence.len()).filter(|at| places[sequence[*at]].along == Along::Registered).collect();
        let mut alone = alone.into_iter().peekable();
        let mut ready: BTreeSet<usize> = order.begin().into_iter().map(|hook| position[hook]).collect();
        let mut running = FuturesUnordered::new();
        let mut done = 0;
        while done < sequence.len() {
            let barrier = alone.peek().copied().unwrap_or(sequence.len());
            let mut launch: Vec<usize> = ready.range(..barrier).copied().collect();
            if done == barrier && ready.contains(&barrier) {
                launch.push(barrier);
            }
            for at in launch {
                ready.remove(&at);
                let hook = sequence[at];
                running.push(async move { (hook, self.start_one(hook, limits, cancel).await) });
            }
            let Some((hook, result)) = running.next().await else { break };
            result?;
            done += 1;
            alone.next_if_eq(&position[hook]);
            ready.extend(order.ran(hook).into_iter().map(|hook| position[hook]));
        }
        Ok(())
    }

    /// Runs the start function of a hook, unless the hook was dropped.
    async fn start_one(
        &self,
        index: usize,
        limits: Limits,
        cancel: &dyn CancelSource,
    ) -> Result<(), HookFailure> {
        let (id, start, own_limit) = {
            let mut inner = self.inner.lock();
            let Some(hook) = inner.hooks.get_mut(index) else { return Ok(()) };
            let parts = (hook.id.clone(), hook.start.take(), hook.timeout);
            inner.current.push(index);
            parts
        };
        let result = match start {
            Some(start) => {
                let run = HookRun { phase: Phase::Start, id, own_limit, limits, events: &self.events };
                run.execute(start, cancel).await
            }
            None => Ok(()),
        };
        let mut inner = self.inner.lock();
        inner.current.retain(|running| *running != index);
        if result.is_ok() {
            inner.started.push(index);
        }
        result
    }

    /// Stops runtime jobs, the newest first, then runs the stop hooks of all started hooks in reverse order.
    pub(crate) async fn stop(&self, limits: Limits) -> Vec<HookFailure> {
        let mut failures = vec![];
        loop {
            let Some(job) = self.inner.lock().jobs.pop() else { break };
            job.stop(Some(limits.deadline)).await;
        }
        loop {
            let (id, stop, own_limit) = {
                let mut inner = self.inner.lock();
                let Some(index) = inner.started.pop() else { break };
                let Some(hook) = inner.hooks.get_mut(index) else { break };
                let parts = (hook.id.clone(), hook.stop.take(), hook.timeout);
                inner.current.clear();
                inner.current.push(index);
                parts
            };
            let Some(stop) = stop else { continue };
            let run = HookRun { phase: Phase::Stop, id, own_limit, limits, events: &self.events };
            if let Err(failure) = run.execute(stop, &Never).await {
                failures.push(failure);
            }
        }
        self.inner.lock().current.clear();
        self.abort_all();
        failures
    }
}

/// The start hooks in order.
enum Sequence {
    Registered,
    Reordered(Vec<usize>),
    Parallel(Order, Vec<usize>),
}

/// Returns the order in which to start hooks at these places; the error contains hooks that wait for each other, and
/// their dependents.
fn sequence(places: &[Place], ordering: &Ordering<'_>) -> Result<Sequence, Vec<usize>> {
    let tokens = places.iter().any(|place| place.first || !place.awaits.is_empty());
    let parallel = places.iter().any(|place| place.along == Along::Parallel);
    if !tokens && !parallel && ordering.shuffle.is_none() {
        return Ok(Sequence::Registered);
    }
    let order = Order::new(places, &(ordering.uses)());
    match ordering.shuffle {
        Some(seed) => Ok(Sequence::Reordered(order.sequence(order::shuffled(seed))?)),
        None if parallel => {
            let sequence = order.clone().sequence(order::registered)?;
            Ok(Sequence::Parallel(order, sequence))
        }
        None => Ok(Sequence::Reordered(order.sequence(order::registered)?)),
    }
}

/// Appends to a list. Ended entries are removed before the list would grow, which costs O(1) amortized.
fn push_among<T>(list: &mut Vec<T>, item: T, has_ended: impl Fn(&T) -> bool) {
    if list.len() == list.capacity() {
        list.retain(|item| !has_ended(item));
        list.reserve(list.len() + 1);
    }
    list.push(item);
}
