//! A hive for tests: failures are panics with the rendered error.

mod checks;
mod left;
mod logs;

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;
use tracing::Dispatch;
use tracing::instrument::WithSubscriber;

use crate::builder::HiveBuilder;
use crate::cell::{Cell, IntoCells, Repr, bundle, supply};
use crate::constructor::Constructor;
use crate::error::HiveError;
use crate::event::Event;
use crate::hive_type::Hive;
use crate::key::Key;
use crate::lifecycle::State;
use crate::outputs::Outputs;
use crate::tally::Tally;
pub use left::{LeftJob, LeftObject, Leftovers};
use logs::Logs;
pub use logs::Record;

/// The number of checks for leaked jobs and objects: tasks end only when their thread is scheduled.
const LEAK_CHECKS: u32 = 400;
/// The delay between two checks; with a paused clock it yields to other tasks.
const PAUSE: Duration = Duration::from_millis(5);

/// A hive for tests: it replaces values, sets options, exposes log, health and order of hooks, and reports leaks at the
/// end.
///
/// ```
/// use hive::prelude::*;
/// # use std::sync::Arc;
/// # pub trait KvStore: Send + Sync { fn put(&self, key: &str); }
/// # #[derive(Default)] pub struct Fake(std::sync::Mutex<Vec<String>>);
/// # impl KvStore for Fake { fn put(&self, key: &str) { self.0.lock().unwrap().push(key.to_owned()) } }
/// fn new_etcd() -> anyhow::Result<Arc<dyn KvStore>> {
///     anyhow::bail!("no etcd in a unit test")
/// }
/// fn announce(kv: Arc<dyn KvStore>, lifecycle: Lifecycle, health: Health) {
///     lifecycle.hook("announce").on_start(move |_| async move {
///         kv.put("node/a");
///         health.ok("announced");
///         Ok(())
///     }).add();
/// }
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let cell = module("announcer", "Announces this node", [provide_private(new_etcd), invoke(announce)]);
/// let fake = Arc::new(Fake::default());
/// let mut hive = TestHive::new(cell).replace::<dyn KvStore>(fake.clone());
/// hive.start().await;
/// assert_eq!(*fake.0.lock().unwrap(), ["node/a"]);
/// assert_eq!(hive.health("announcer").message, "announced");
/// assert_eq!(hive.hook_order(), ["announce"]);
/// # drop(fake);
/// hive.finish().await; // stops; no job and no object is leaked
/// # });
/// ```
///
/// # The clock
/// All waits of a hive use tokio's clock. With a paused clock - `#[tokio::test(start_paused = true)]`, of tokio's
/// feature `test-util` - time advances to the next timer as soon as all tasks wait, so hours pass instantly, and times
/// are exact:
///
/// ```
/// use hive::prelude::*;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::Duration;
///
/// fn collect(jobs: JobGroup, collected: Arc<AtomicU32>) {
///     jobs.timer("gc", Duration::from_secs(300), move |_| {
///         let count = collected.fetch_add(1, Ordering::Relaxed);
///         tracing::info!(count, "Collected");
///         async { Ok(()) }
///     }).add();
/// }
/// # /*
/// #[tokio::test(start_paused = true)]
/// async fn collects_every_five_minutes() {
/// # */
/// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
///     let cell = module("gc", "Collects", [invoke(collect), supply(Arc::new(AtomicU32::new(0)))]);
///     let mut hive = TestHive::new(cell);
///     hive.start().await;
///     tokio::time::sleep(Duration::from_secs(3601)).await; // returns instantly
///     assert_eq!(hive.get::<AtomicU32>().load(Ordering::Relaxed), 12);
///     hive.logged(hive::LogLevel::INFO, "Collected count=11");
///     hive.finish().await;
/// # });
/// # /*
/// }
/// # */
/// ```
///
/// # The log
/// Log lines of constructors, hooks and jobs are kept for this hive alone, whatever thread they run on, and printed
/// when the test fails; a test may run several hives. Lines of tasks that a cell spawns itself, and of code that the
/// test calls itself, go to the global subscriber: [`tracing_to`](TestHive::tracing_to) redirects them.
///
/// # The end
/// A test ends its hive by [`finish`](TestHive::finish) or [`stop`](TestHive::stop), or by [`kill`](TestHive::kill) to
/// simulate a crash. Dropping a running hive fails the test, because errors of the stop would go unnoticed.
pub struct TestHive {
    stage: Stage,
    events: Arc<Mutex<Vec<Event>>>,
    logs: Logs,
    dispatch: Dispatch,
    tally: Arc<Tally>,
    held: Vec<Key>,
    made_at: &'static Location<'static>,
}

impl fmt::Debug for TestHive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestHive").finish_non_exhaustive()
    }
}

enum Stage {
    Builder(Box<Option<HiveBuilder>>),
    Hive(Box<Hive>),
    Gone,
}

#[track_caller]
fn fail(what: &str, error: &dyn std::fmt::Display) -> ! {
    panic!("{what}: {error}")
}

/// Fails the test from within a future, where the caller's location is not available: `at` is the test's line. See
/// [`fail`].
fn fail_at(what: &str, at: &Location<'_>, error: &dyn std::fmt::Display) -> ! {
    panic!("{what} at {}:{}: {error}", at.file(), at.line())
}

impl TestHive {
    /// Returns a hive of the given cells.
    #[track_caller]
    pub fn new(cells: impl IntoCells) -> Self {
        let made_at = Location::caller();
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let sink = events.clone();
        let (logs, tally) = (Logs::new(), Arc::<Tally>::default());
        let dispatch = Dispatch::new(logs.clone());
        let builder = Hive::builder(cells)
            .on_event(move |event| sink.lock().push(event.clone()))
            .watched(dispatch.clone(), tally.clone());
        let stage = Stage::Builder(Box::new(Some(builder)));
        TestHive { stage, events, logs, dispatch, tally, held: vec![], made_at }
    }

    /// Returns a hive that builds `Arc<T>` even if no invocation needs it, so that [`get`](TestHive::get) finds it; see
    /// [`new`](TestHive::new).
    #[track_caller]
    pub fn needing<T: ?Sized + Send + Sync + 'static>(cells: impl IntoCells) -> Self {
        let mut needs = Constructor::new(|_: Arc<T>| (), Location::caller());
        needs.place.function = "TestHive::needing";
        TestHive::new([bundle(cells), Cell(Arc::new(Repr::Invoke(needs)))])
    }

    /// Sets builder options that have no method here: words of a command line, folders, other limits.
    #[track_caller]
    pub fn with(mut self, change: impl FnOnce(HiveBuilder) -> HiveBuilder) -> Self {
        match &mut self.stage {
            Stage::Builder(builder) => **builder = builder.take().map(change),
            Stage::Hive(_) | Stage::Gone => fail("too late", &"the hive is built"),
        }
        self
    }

    /// Replaces every provider of `T`, private ones included, by a value.
    #[track_caller]
    pub fn replace<T: ?Sized + Send + Sync + 'static>(self, value: Arc<T>) -> Self {
        let at = Location::caller();
        self.with(|builder| builder.replace_within(None, value, at))
    }

    /// Replaces the providers of `T`, private ones included, by a value within a module and its submodules.
    #[track_caller]
    pub fn replace_in<T: ?Sized + Send + Sync + 'static>(self, module: &str, value: Arc<T>) -> Self {
        let at = Location::caller();
        self.with(|builder| builder.replace_within(Some(module.to_owned()), value, at))
    }

    /// Adds a ready value, or several: anything that a constructor may return.
    #[track_caller]
    pub fn supply<O: Outputs + Clone + Sync>(self, outputs: O) -> Self {
        let cell = supply(outputs);
        self.with(|builder| builder.more(cell))
    }

    /// Sets an option.
    #[track_caller]
    pub fn set(self, key: &str, value: impl ToString) -> Self {
        self.with(|builder| builder.set(key, value))
    }

    /// Starts hooks in a random legal order; see [`HiveBuilder::shuffle`].
    #[track_caller]
    pub fn shuffle(self, seed: u64) -> Self {
        self.with(|builder| builder.shuffle(seed))
    }

    /// Sets the limit of the start.
    #[track_caller]
    pub fn start_timeout(self, limit: Duration) -> Self {
        self.with(|builder| builder.start_timeout(limit))
    }

    /// Sets the limit of the stop.
    #[track_caller]
    pub fn stop_timeout(self, limit: Duration) -> Self {
        self.with(|builder| builder.stop_timeout(limit))
    }

    /// Builds and starts the hive.
    pub async fn try_start(&mut self) -> Result<(), HiveError> {
        if let Stage::Builder(builder) = &mut self.stage {
            let build = || builder.take().map_or(Err(HiveError::Graph(vec![])), HiveBuilder::build);
            let built = tracing::dispatcher::with_default(&self.dispatch, build)?;
            self.stage = Stage::Hive(Box::new(built));
        }
        match &mut self.stage {
            Stage::Hive(hive) => hive.start().with_subscriber(self.dispatch.clone()).await,
            Stage::Builder(_) | Stage::Gone => Ok(()),
        }
    }

    /// Builds and starts the hive; panics on failure.
    #[track_caller]
    pub fn start(&mut self) -> impl Future<Output = ()> {
        let at = Location::caller();
        async move {
            if let Err(error) = self.try_start().await {
                fail_at("start", at, &error);
            }
        }
    }

    /// Stops the hive; an error if a stop hook fails.
    pub async fn try_stop(&mut self) -> Result<(), HiveError> {
        let dispatch = self.dispatch.clone();
        self.hive_mut().stop().with_subscriber(dispatch).await
    }

    /// Stops the hive and checks that no job is leaked.
    #[track_caller]
    pub fn stop(&mut self) -> impl Future<Output = ()> {
        let at = Location::caller();
        self.hive_mut();
        async move {
            if let Err(error) = self.try_stop().await {
                fail_at("stop", at, &error);
            }
            let left = Leftovers { jobs: self.left_jobs().await, ..Leftovers::default() };
            if !left.is_empty() {
                fail_at("stop", at, &left);
            }
        }
    }

    /// Simulates a crash: tasks are dropped at their await points, no stop hook runs.
    pub fn kill(mut self) {
        let stage = std::mem::replace(&mut self.stage, Stage::Gone);
        tracing::dispatcher::with_default(&self.dispatch, || drop(stage));
    }

    /// Permits references to this object after the hive is gone, held by the test or by objects of the test.
    pub fn holding<T: ?Sized + Send + Sync + 'static>(mut self) -> Self {
        self.held.push(Key::of::<T>());
        self
    }

    /// Stops the hive, drops it, and checks that nothing is leaked: no job, and no object that its constructors have
    /// returned. The test drops its own references first, or declares them by [`holding`](TestHive::holding).
    #[track_caller]
    pub fn finish(self) -> impl Future<Output = ()> {
        let at = Location::caller();
        self.hive();
        async move {
            let mut this = self;
            if let Err(left) = this.dissolve(at).await {
                fail_at("finish", at, &left);
            }
        }
    }

    /// Stops the hive and returns an error that lists the leaks; see [`finish`](TestHive::finish).
    #[track_caller]
    pub fn try_finish(mut self) -> impl Future<Output = Result<(), Leftovers>> {
        let at = Location::caller();
        self.hive();
        async move { self.dissolve(at).await }
    }

    async fn dissolve(&mut self, at: &Location<'_>) -> Result<(), Leftovers> {
        if self.hive().state() == State::Started
            && let Err(error) = self.try_stop().await
        {
            fail_at("stop", at, &error);
        }
        let jobs = self.left_jobs().await;
        let stage = std::mem::replace(&mut self.stage, Stage::Gone);
        tracing::dispatcher::with_default(&self.dispatch, || drop(stage));
        let mut left = Leftovers { jobs, objects: self.tally.left(&self.held) };
        for _ in 0..LEAK_CHECKS {
            if left.objects.is_empty() {
                break;
            }
            sleep(PAUSE).await;
            left.objects = self.tally.left(&self.held);
        }
        if left.is_empty() { Ok(()) } else { Err(left) }
    }

    /// Returns jobs that did not end when cancelled: those that were dropped, and those that could not be.
    async fn left_jobs(&self) -> Vec<LeftJob> {
        tokio::task::yield_now().await;
        for _ in 0..LEAK_CHECKS {
            if self.hive().running_tasks().is_empty() {
                break;
            }
            sleep(PAUSE).await;
        }
        let running = self.hive().running_tasks();
        let running =
            running.into_iter().map(|id| LeftJob { job: id.name, module: id.module, dropped_after: None });
        let mut left: Vec<LeftJob> = running.collect();
        for event in self.events.lock().iter() {
            let Event::JobAborted { job, module, grace } = event else { continue };
            if !left.iter().any(|left| left.job == *job && left.module == *module) {
                left.push(LeftJob { job: job.clone(), module: module.clone(), dropped_after: Some(*grace) });
            }
        }
        left
    }

    /// Returns the hive, once it is started.
    #[track_caller]
    pub fn hive(&self) -> &Hive {
        match &self.stage {
            Stage::Hive(hive) => hive,
            Stage::Builder(_) => fail("too early", &"the hive is not started"),
            Stage::Gone => fail("too late", &"the hive is gone"),
        }
    }

    #[track_caller]
    fn hive_mut(&mut self) -> &mut Hive {
        match &mut self.stage {
            Stage::Hive(hive) => hive,
            Stage::Builder(_) => fail("too early", &"the hive is not started"),
            Stage::Gone => fail("too late", &"the hive is gone"),
        }
    }

    /// Returns an object of the hive, private ones included.
    #[track_caller]
    pub fn get<T: ?Sized + Send + Sync + 'static>(&self) -> Arc<T> {
        let Some(object) = self.hive().get_anywhere() else {
            let name = std::any::type_name::<T>();
            fail(
                "not built",
                &format_args!("{name}; `TestHive::needing::<..>` builds what nothing else needs"),
            )
        };
        object
    }

    /// Returns the subscriber of this hive's log, for code that the test calls itself: `with_default(hive.tracing_to(),
    /// || ..)` of [`tracing::dispatcher`], or `.with_subscriber(hive.tracing_to().clone())` on a future.
    pub fn tracing_to(&self) -> &Dispatch {
        &self.dispatch
    }

    /// Returns all events so far.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }
}

impl Drop for TestHive {
    fn drop(&mut self) {
        let is_started = matches!(&self.stage, Stage::Hive(hive) if hive.state() == State::Started);
        let stage = std::mem::replace(&mut self.stage, Stage::Gone);
        tracing::dispatcher::with_default(&self.dispatch, || drop(stage));
        if std::thread::panicking() {
            self.print_logs();
        } else if is_started {
            let at = self.made_at;
            fail_at(
                "never stopped",
                at,
                &"end the test with finish().await or stop().await, or kill() a hive that is to end without a stop",
            );
        }
    }
}
