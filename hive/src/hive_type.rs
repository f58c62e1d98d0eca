//! The hive: construction, start, stop, run.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::builder::{HiveBuilder, Times};
use crate::cell::IntoCells;
use crate::config::{Arguments, ConfigError, ConfigSpec, Settings, Values as ConfigValues};
use crate::error::{HiveError, HookFailure};
use crate::event::{Event, Events, HookId};
use crate::graph::Graph;
use crate::handles::Shared;
use crate::health::HealthTree;
use crate::job::Jobs;
use crate::key::Key;
use crate::lifecycle::{Limits, Ordering, State, TaskId};
use crate::outcome::{Outcome, outcome};
use crate::param::Values;
use crate::part::Part;
use crate::plan::Plan;
use crate::scope::Core;
use crate::shutdown::{Reason, Shutdowner};
use crate::signals::{Armed, ProcessGuard};

/// The grace period of a start or stop beyond its limit.
const HARD_LIMIT: Duration = Duration::from_secs(5);

/// A planned application: builds its objects, starts and stops them.
///
/// States go `Built -> Populated -> Started -> Stopped`, or to `Failed`; other transitions are errors. A hive is used
/// once; its cells may be used again.
pub struct Hive {
    pub(crate) graph: Arc<Graph>,
    pub(crate) plan: Arc<Plan>,
    part: Part,
    values: Values,
    scopes: Vec<Arc<Core>>,
    shared: Arc<Shared>,
    settings: Arc<Settings>,
    arguments: Arguments,
    usage: String,
    limits: Times,
    process: Option<ProcessGuard>,
}

pub(crate) struct Parts {
    pub(crate) graph: Graph,
    pub(crate) plan: Plan,
    pub(crate) shared: Arc<Shared>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) arguments: Arguments,
    pub(crate) usage: String,
    pub(crate) limits: Times,
}

/// Checks a list of cells: every error that [`Hive::builder`] would return, with the options at their defaults. No code
/// of the cells runs.
pub fn validate(cells: impl IntoCells) -> Result<(), HiveError> {
    Hive::builder(cells).build().map(drop)
}

impl Hive {
    /// Returns a builder of a hive from cells.
    pub fn builder(cells: impl IntoCells) -> HiveBuilder {
        HiveBuilder::new(cells)
    }

    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { graph, plan, shared, settings, arguments, usage, limits } = parts;
        let (graph, plan) = (Arc::new(graph), Arc::new(plan));
        let part = Part::of(&graph, &plan, crate::graph::ROOT);
        let values = part.no_values();
        Hive {
            graph,
            plan,
            part,
            values,
            scopes: vec![],
            shared,
            settings,
            arguments,
            usage,
            limits,
            process: None,
        }
    }

    /// Returns the configuration in force.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// Returns a configuration struct as the cells take it, for code that runs before the hive starts or instead of it:
    /// opening the log, dropping privileges, a subcommand. An error if no cell lists the struct.
    pub fn config<T: ConfigSpec>(&self) -> Result<T, ConfigError> {
        T::from_values(&ConfigValues { settings: &self.settings })
    }

    /// Returns the command line without options.
    pub fn arguments(&self) -> &Arguments {
        &self.arguments
    }

    /// Returns the help text for all options, a line each.
    pub fn usage(&self) -> &str {
        &self.usage
    }

    /// Returns the health of all modules.
    pub fn health(&self) -> &Arc<HealthTree> {
        &self.shared.health
    }

    /// Returns the jobs of this hive, for a watchdog.
    pub fn jobs(&self) -> &Arc<Jobs> {
        &self.shared.jobs
    }

    /// Returns the events of this hive.
    pub fn events(&self) -> &Arc<Events> {
        &self.shared.events
    }

    /// Returns a handle that stops this hive from another task.
    pub fn shutdowner(&self) -> Shutdowner {
        self.shared.shutdown.clone()
    }

    /// Returns the current state of the hive.
    pub fn state(&self) -> State {
        self.shared.hooks.state()
    }

    /// Returns an object that is visible to the whole hive, if it has been built.
    pub fn get<T: ?Sized + Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let scope = &self.graph.scopes[crate::graph::ROOT];
        self.value(scope.providers.get(&Key::of::<T>())?)
    }

    /// Returns an object that has been built, even if it is private to a module; with several, the first registered.
    pub(crate) fn get_anywhere<T: ?Sized + Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let key = Key::of::<T>();
        self.graph
            .scopes
            .iter()
            .filter_map(|scope| scope.providers.get(&key))
            .find_map(|slot| self.value(slot))
    }

    fn value<T: ?Sized + Send + Sync + 'static>(&self, slot: &crate::param::Slot) -> Option<Arc<T>> {
        self.values[slot.out].as_ref()?.downcast_ref::<Arc<T>>().cloned()
    }

    /// Returns the tasks that have not ended.
    pub(crate) fn running_tasks(&self) -> Vec<TaskId> {
        self.shared.hooks.running_tasks()
    }

    /// Runs all constructors that the invocations need, then the invocations. [`start`](Hive::start) calls it if
    /// needed.
    pub async fn populate(&mut self) -> Result<(), HiveError> {
        self.expect_state("populate", &[State::Built])?;
        let result = self.construct().await;
        self.shared.hooks.set_state(if result.is_ok() { State::Populated } else { State::Failed });
        if result.is_err() {
            self.shared.hooks.drop_pending();
        }
        result
    }

    fn expect_state(&self, action: &'static str, allowed: &[State]) -> Result<(), HiveError> {
        let state = self.state();
        if allowed.contains(&state) { Ok(()) } else { Err(HiveError::State { action, state }) }
    }

    async fn construct(&mut self) -> Result<(), HiveError> {
        let Hive { part, values, shared, limits, .. } = self;
        let begin = Instant::now();
        self.scopes = part.construct(values, shared, limits, &shared.shutdown).await?;
        shared.events.emit(Event::Populated { duration: begin.elapsed() });
        Ok(())
    }

    /// Populates the hive if needed, then runs the start hooks. On failure, or when a shutdown is requested meanwhile,
    /// the hooks that have started are stopped in reverse order.
    pub async fn start(&mut self) -> Result<(), HiveError> {
        self.expect_state("start", &[State::Built, State::Populated])?;
        let _watchdog = self.watchdog("start", self.limits.start + self.limits.stop);
        let begin = Instant::now();
        let events = self.shared.events.clone();
        events.emit(Event::Starting);
        let result = self.start_by(begin + self.limits.start).await;
        let duration = begin.elapsed();
        match &result {
            Ok(()) => {
                let (hooks, jobs) = self.shared.hooks.started();
                events.emit(Event::Started { duration, hooks, jobs });
            }
            Err(error) => {
                self.shared.hooks.abort_all();
                self.shared.hooks.set_state(State::Failed);
                // Hooks of a failed construction: none has run, so none must be stopped.
                self.shared.hooks.drop_pending();
                let (error, cancelled) = (error.to_string(), error.is_orderly());
                events.emit(Event::StartFailed { error, duration, cancelled });
            }
        }
        events.detach_first();
        result
    }

    async fn start_by(&mut self, deadline: Instant) -> Result<(), HiveError> {
        if self.state() == State::Built {
            self.construct().await?;
        }
        let hooks = self.shared.hooks.clone();
        hooks.set_state(State::Starting);
        let limits = Limits { deadline, limit: self.limits.start, heartbeat: self.limits.heartbeat };
        let uses = || self.part.uses();
        let ordering = Ordering { uses: &uses, shuffle: self.limits.shuffle };
        let Err(stopped) = hooks.start(ordering, limits, &self.shared.shutdown).await else { return Ok(()) };
        self.shared.events.emit(Event::RollingBack { hooks: stopped.started });
        let rollback = self.stop_hooks().await;
        Err(stopped.into_error(rollback))
    }

    async fn stop_hooks(&self) -> Vec<HookFailure> {
        let hooks = &self.shared.hooks;
        hooks.set_state(State::Stopping);
        let limit = self.limits.stop;
        let limits = Limits { deadline: Instant::now() + limit, limit, heartbeat: self.limits.heartbeat };
        hooks.stop(limits).await
    }

    /// Stops jobs that were added at run time, then runs the stop hooks in reverse order of the start; all of them,
    /// even if some fail.
    pub async fn stop(&mut self) -> Result<(), HiveError> {
        self.expect_state("stop", &[State::Started])?;
        let _watchdog = self.watchdog("stop", self.limits.stop);
        let begin = Instant::now();
        self.shared.events.emit(Event::Stopping);
        let failures = self.stop_hooks().await;
        let (duration, failed) = (begin.elapsed(), failures.len());
        self.shared.hooks.set_state(if failed == 0 { State::Stopped } else { State::Failed });
        self.shared.events.emit(Event::Stopped { duration, failed });
        if failed == 0 { Ok(()) } else { Err(HiveError::Stop(failures)) }
    }

    /// Ends the process when a start or stop hangs beyond its limit, which only code that blocks a thread can cause.
    fn watchdog(&self, what: &'static str, limit: Duration) -> Option<Armed> {
        let hooks = self.shared.hooks.clone();
        self.process.as_ref()?.exit_after(limit + HARD_LIMIT, move || {
            let name = |hook: &HookId| format!("hook `{}` of module `{}`", hook.name, hook.module);
            let culprit = match hooks.current() {
                hooks if hooks.is_empty() => "a constructor".to_owned(),
                hooks => hooks.iter().map(name).collect::<Vec<_>>().join(", "),
            };
            tracing::error!("The {what} hangs in {culprit}, exiting");
        })
    }

    /// Starts, waits for a shutdown request, stops. Handles no signals; one process may run several hives this way.
    pub async fn run_until_shutdown(mut self) -> Outcome {
        let start = self.start().await;
        let stop = match &start {
            Ok(()) => {
                self.shared.shutdown.requested().await;
                self.stop().await
            }
            Err(_) => Ok(()),
        };
        outcome(self.shared.shutdown.take_reason(), start, stop)
    }

    /// Like [`run_until_shutdown`](Hive::run_until_shutdown) for a hive that owns its process: SIGTERM and SIGINT stop
    /// it, even while it starts; a second signal, at least 100 ms later, ends the process at once, as does a start or
    /// stop that hangs 5 s beyond its limit. Both run on a dedicated operating system thread, so they work even if all
    /// threads of the runtime are blocked.
    pub async fn run(mut self) -> Outcome {
        let shutdown = self.shared.shutdown.clone();
        match ProcessGuard::spawn(move |name| shutdown.request(Reason::Signal(name))) {
            Ok(guard) => self.process = Some(guard),
            Err(error) => return outcome(None, Err(HiveError::Signals(error)), Ok(())),
        }
        self.run_until_shutdown().await
    }
}

impl Drop for Hive {
    fn drop(&mut self) {
        self.shared.hooks.end();
        self.scopes.iter().for_each(|scope| scope.abandon());
        self.part.drop_values(&mut self.values);
    }
}
