//! Scopes with a lifecycle of their own: a sub-tree of the hive that starts and stops at run time.

use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::builder::Times;
use crate::error::{HiveError, Site};
use crate::event::Event;
use crate::handles::Shared;
use crate::health::{Health, Status};
use crate::lifecycle::{CancelSource, Hooks, Lifecycle, Limits, Ordering, State, TaskId, in_start_hook};
use crate::outputs::Value;
use crate::param::Values;
use crate::part::Part;
use crate::shutdown::Shutdowner;

tokio::task_local! {
    /// The scopes, by address, whose start or stop is running this code.
    static WITHIN: Vec<usize>;
}

/// A handle that starts and stops the cells of a [`scope()`](crate::scope()); `T` only identifies the scope.
///
/// A start or stop that has begun is completed even if its caller is dropped; the next one waits for it.
pub struct Scope<T: ?Sized> {
    core: Arc<Core>,
    marker: PhantomData<fn() -> Box<T>>,
}

/// The function that creates the typed handle of a scope.
pub(crate) type MakeScope = fn(Arc<Core>) -> Value;

pub(crate) fn make<T: ?Sized + 'static>(core: Arc<Core>) -> Value {
    Arc::new(Arc::new(Scope::<T> { core, marker: PhantomData }))
}

impl<T: ?Sized> Scope<T> {
    /// Builds the objects of the scope again and runs its start hooks, within the hive's limits. While the hive itself
    /// starts, this waits until it has started, so it returns an error in a start hook, and in a hook of the scope
    /// itself. A failed start is rolled back, and may be retried.
    pub async fn start(&self) -> Result<(), HiveError> {
        self.core.wait_for_hive().await?;
        let core = self.core.clone();
        self.core.to_the_end("start", async move { core.start().await }).await
    }

    /// Stops the jobs of the scope and runs its stop hooks in reverse order, then drops its objects.
    pub async fn stop(&self) -> Result<(), HiveError> {
        let core = self.core.clone();
        self.core.to_the_end("stop", async move { core.stop().await }).await
    }

    /// Returns the state of the scope; [`State::Built`] before its first start.
    pub fn state(&self) -> State {
        *self.core.state.borrow()
    }

    /// Waits until the state of the scope differs from this one.
    pub async fn changed_from(&self, state: State) -> State {
        let mut states = self.core.state.subscribe();
        match states.wait_for(|now| *now != state).await {
            Ok(now) => *now,
            Err(_) => state,
        }
    }

    /// Returns the health reports of the scope and its modules.
    pub fn health(&self) -> Vec<Status> {
        self.core.health.reports()
    }
}

/// One start of a scope with its objects.
struct Life {
    shared: Arc<Shared>,
    values: Values,
    part: Arc<Part>,
    scopes: Vec<Arc<Core>>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.shared.hooks.end();
        self.scopes.iter().for_each(|scope| scope.abandon());
        self.part.drop_values(&mut self.values);
    }
}

/// The state of a scope, independent of the type of its handle.
pub(crate) struct Core {
    part: Arc<Part>,
    site: Site,
    /// The handles of the surrounding hive or scope.
    shared: Arc<Shared>,
    limits: Times,
    /// The values that it uses from the surrounding hive.
    outer: OnceLock<Values>,
    health: Health,
    life: tokio::sync::Mutex<()>,
    current: Mutex<Option<Life>>,
    state: watch::Sender<State>,
    /// Whether the surrounding hive or scope has started; closed when it stops.
    open: watch::Sender<bool>,
    closed: CancellationToken,
}

/// Cancels a start together with that of the hive, and when the surrounding hive or scope stops.
struct Cancel<'a>(&'a Shutdowner, &'a CancellationToken);

impl CancelSource for Cancel<'_> {
    fn is_cancelled(&self) -> bool {
        self.0.is_shutting_down() || self.1.is_cancelled()
    }

    fn cancelled(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            tokio::select! {
                () = self.0.requested() => {}
                () = self.1.cancelled() => {}
            }
        })
    }
}

impl Core {
    pub(crate) fn new(part: Arc<Part>, site: Site, shared: Arc<Shared>, limits: Times) -> Arc<Self> {
        Arc::new(Core {
            part,
            health: Health::of_module(shared.health.clone(), &site.module),
            site,
            shared,
            limits,
            outer: OnceLock::new(),
            life: tokio::sync::Mutex::new(()),
            current: Mutex::new(None),
            state: watch::channel(State::Built).0,
            open: watch::channel(false).0,
            closed: CancellationToken::new(),
        })
    }

    /// Connects the scope after the surrounding part has been built: takes the values that it uses, and adds a hook
    /// that opens and closes it.
    pub(crate) fn bind(self: &Arc<Self>, values: &Values) {
        let mut outer = self.part.no_values();
        for slot in &self.part.needs {
            outer[slot.out].clone_from(&values[slot.out]);
        }
        let _bound_before = self.outer.set(outer);
        let (opens, closes) = (self.clone(), self.clone());
        let site = &self.site;
        let lifecycle =
            Lifecycle::new(self.shared.hooks.clone(), site.module.clone(), site.place.function, usize::MAX);
        lifecycle
            .hook("scope")
            .on_start(move |_| async move {
                opens.open.send_replace(true);
                Ok(())
            })
            .on_stop(move |_| async move {
                closes.closed.cancel();
                let _turn = closes.life.lock().await;
                let running = closes.current.lock().is_some();
                let within = vec![closes.address()];
                if running { Ok(WITHIN.scope(within, closes.end()).await?) } else { Ok(()) }
            })
            .add();
    }

    async fn wait_for_hive(&self) -> Result<(), HiveError> {
        let mut open = self.open.subscribe();
        if in_start_hook() && !*open.borrow() {
            return Err(self.fault(HiveError::StartInHook));
        }
        tokio::select! {
            opened = open.wait_for(|open| *open) => drop(opened),
            () = self.closed.cancelled() => {}
            () = self.shared.shutdown.requested() => {}
        }
        match self.closed.is_cancelled() || self.shared.shutdown.is_shutting_down() {
            true => Err(self.fault(HiveError::ScopeState { action: "start", state: State::Stopping })),
            false => Ok(()),
        }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Runs a future in a task of the hive, so that it completes even if the caller is dropped.
    async fn to_the_end(
        &self,
        action: &'static str,
        work: impl Future<Output = Result<(), HiveError>> + Send + 'static,
    ) -> Result<(), HiveError> {
        let mut within = WITHIN.try_with(Clone::clone).unwrap_or_default();
        if within.contains(&self.address()) {
            return Err(self.fault(HiveError::ScopeInItself { action }));
        }
        within.push(self.address());
        let (done, result) = oneshot::channel();
        let id = TaskId { name: action.into(), module: self.site.module.clone() };
        self.shared.hooks.spawn(id, async move {
            let _nobody_waits = done.send(WITHIN.scope(within, work).await);
        });
        let aborted = |_| HiveError::ScopeState { action, state: State::Stopped };
        result.await.map_err(aborted).flatten().map_err(|error| self.fault(error))
    }

    /// Returns the reporter of the scope as a whole, in addition to those of its cells.
    fn own_health(&self) -> Health {
        self.health.child("scope")
    }

    fn fault(&self, error: HiveError) -> HiveError {
        HiveError::Scope { scope: self.site.module.to_string(), error: Box::new(error) }
    }

    async fn start(self: &Arc<Self>) -> Result<(), HiveError> {
        let _turn = self.life.lock().await;
        if self.current.lock().is_some() {
            return Err(HiveError::ScopeState { action: "start", state: State::Started });
        }
        if self.closed.is_cancelled() {
            return Err(HiveError::ScopeState { action: "start", state: State::Stopping });
        }
        let begin = Instant::now();
        self.state.send_replace(State::Starting);
        self.health.close();
        let result = self.begin(begin).await;
        let (scope, duration) = (self.site.module.clone(), begin.elapsed());
        match &result {
            Ok(()) => {
                self.state.send_replace(State::Started);
                self.own_health().ok("Started");
                self.shared.events.emit(Event::ScopeStarted { scope, duration });
            }
            Err(error) => {
                *self.current.lock() = None;
                self.state.send_replace(State::Failed);
                self.health.close();
                self.own_health().degraded("Failed to start", error);
                self.shared.events.emit(Event::ScopeFailed { scope, duration, error: error.to_string() });
            }
        }
        result
    }

    async fn begin(&self, begin: Instant) -> Result<(), HiveError> {
        let hooks = Hooks::new(self.shared.events.clone(), 0);
        let shared = Arc::new(self.shared.with_hooks(hooks.clone()));
        let values = self.outer.get().cloned().unwrap_or_else(|| self.part.no_values());
        let mut life = Life { shared, values, part: self.part.clone(), scopes: Vec::new() };
        let cancel = Cancel(&self.shared.shutdown, &self.closed);
        life.scopes = self.part.construct(&mut life.values, &life.shared, &self.limits, &cancel).await?;
        hooks.set_state(State::Starting);
        let uses = || self.part.uses();
        let ordering = Ordering { uses: &uses, shuffle: self.limits.shuffle };
        let limits = Limits::new(begin, self.limits.start, self.limits.heartbeat);
        let started = hooks.start(ordering, limits, &cancel).await;
        *self.current.lock() = Some(life);
        let Err(failure) = started else { return Ok(()) };
        let rollback = self.stop_hooks(&hooks).await;
        Err(failure.into_error(rollback))
    }

    async fn stop_hooks(&self, hooks: &Hooks) -> Vec<crate::error::HookFailure> {
        hooks.set_state(State::Stopping);
        hooks.stop(Limits::new(Instant::now(), self.limits.stop, self.limits.heartbeat)).await
    }

    async fn stop(&self) -> Result<(), HiveError> {
        let _turn = self.life.lock().await;
        let state = *self.state.borrow();
        if self.current.lock().is_none() {
            return Err(HiveError::ScopeState { action: "stop", state });
        }
        self.end().await
    }

    /// Stops the running objects.
    async fn end(&self) -> Result<(), HiveError> {
        let begin = Instant::now();
        self.state.send_replace(State::Stopping);
        let hooks = self.current.lock().as_ref().map(|life| life.shared.hooks.clone());
        let failures = match hooks {
            Some(hooks) => self.stop_hooks(&hooks).await,
            None => vec![],
        };
        // In a statement of its own, so that the lock is released before the objects are dropped.
        let life = self.current.lock().take();
        drop(life);
        self.health.close();
        let (scope, duration, failed) = (self.site.module.clone(), begin.elapsed(), failures.len());
        self.shared.events.emit(Event::ScopeStopped { scope, duration, failed });
        self.state.send_replace(State::Stopped);
        if failed == 0 {
            self.own_health().stopped("Stopped");
            return Ok(());
        }
        let error = HiveError::Stop(failures);
        self.own_health().degraded("Failed to stop", &error);
        Err(error)
    }

    /// Drops the running objects without any hook: the hive is gone.
    pub(crate) fn abandon(&self) {
        self.closed.cancel();
        let life = self.current.lock().take();
        drop(life);
    }
}
