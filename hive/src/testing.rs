//! A hive for tests: failures are panics with the rendered error.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::builder::HiveBuilder;
use crate::cell::{IntoCells, group, invoke};
use crate::error::HiveError;
use crate::event::{Event, Phase};
use crate::health::Status;
use crate::hive_type::Hive;
use crate::outputs::Outputs;

/// A hive with methods that tests like: values replaced, options set, order of hooks observed.
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
///     });
/// }
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let cell = module("announcer", "Announces this node", [provide_private(new_etcd), invoke(announce)]);
/// let fake = Arc::new(Fake::default());
/// let mut hive = TestHive::new(cell).replace::<dyn KvStore>(fake.clone());
/// hive.start().await;
/// assert_eq!(*fake.0.lock().unwrap(), ["node/a"]);
/// assert_eq!(hive.health("announcer").message, "announced");
/// assert_eq!(hive.hook_order(), ["announce"]);
/// hive.stop().await;
/// # });
/// ```
pub struct TestHive {
    stage: Stage,
    events: Arc<Mutex<Vec<Event>>>,
}

enum Stage {
    Builder(Box<Option<HiveBuilder>>),
    Hive(Box<Hive>),
}

#[track_caller]
fn fail(what: &str, error: &dyn std::fmt::Display) -> ! {
    panic!("{what}: {error}")
}

impl TestHive {
    /// A hive of the given cells.
    pub fn new(cells: impl IntoCells) -> Self {
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let sink = events.clone();
        let builder = Hive::builder(cells).on_event(move |event| sink.lock().push(event.clone()));
        TestHive { stage: Stage::Builder(Box::new(Some(builder))), events }
    }

    /// Like [`new`](TestHive::new), and builds `Arc<T>` even if no invocation needs it, so that [`get`](TestHive::get)
    /// finds it.
    #[track_caller]
    pub fn needing<T: ?Sized + Send + Sync + 'static>(cells: impl IntoCells) -> Self {
        TestHive::new([group(cells), invoke(|_: Arc<T>| ())])
    }

    #[track_caller]
    fn change(mut self, change: impl FnOnce(HiveBuilder) -> HiveBuilder) -> Self {
        match &mut self.stage {
            Stage::Builder(builder) => **builder = builder.take().map(change),
            Stage::Hive(_) => fail("too late", &"the hive is built"),
        }
        self
    }

    /// Puts a value in the place of every provider of `T`, also private ones.
    #[track_caller]
    pub fn replace<T: ?Sized + Send + Sync + 'static>(self, value: Arc<T>) -> Self {
        self.change(|builder| builder.replace(value))
    }

    /// Puts a value in the place of the providers of `T`, also private ones, in one module and those inside of it.
    #[track_caller]
    pub fn replace_in<T: ?Sized + Send + Sync + 'static>(self, module: &str, value: Arc<T>) -> Self {
        let at = Location::caller();
        self.change(|builder| builder.replace_within(Some(module.to_owned()), value, at))
    }

    /// Adds a ready value, or several: whatever a constructor may return.
    #[track_caller]
    pub fn supply<O: Outputs + Clone + Sync>(self, outputs: O) -> Self {
        self.change(|builder| builder.supply(outputs))
    }

    /// Sets an option.
    #[track_caller]
    pub fn set(self, key: &str, value: impl ToString) -> Self {
        self.change(|builder| builder.set(key, value))
    }

    /// Starts hooks in a random legal order; see [`HiveBuilder::shuffle`].
    #[track_caller]
    pub fn shuffle(self, seed: u64) -> Self {
        self.change(|builder| builder.shuffle(seed))
    }

    /// Limits the start.
    #[track_caller]
    pub fn start_timeout(self, limit: Duration) -> Self {
        self.change(|builder| builder.start_timeout(limit))
    }

    /// Limits the stop.
    #[track_caller]
    pub fn stop_timeout(self, limit: Duration) -> Self {
        self.change(|builder| builder.stop_timeout(limit))
    }

    /// Builds and starts the hive; the error if that fails.
    pub async fn try_start(&mut self) -> Result<(), HiveError> {
        if let Stage::Builder(builder) = &mut self.stage {
            let built = builder.take().map_or(Err(HiveError::Graph(vec![])), HiveBuilder::build)?;
            self.stage = Stage::Hive(Box::new(built));
        }
        match &mut self.stage {
            Stage::Hive(hive) => hive.start().await,
            Stage::Builder(_) => Ok(()),
        }
    }

    /// Builds and starts the hive.
    pub async fn start(&mut self) {
        if let Err(error) = self.try_start().await {
            fail("start", &error);
        }
    }

    /// Stops the hive; the error if a stop hook fails.
    pub async fn try_stop(&mut self) -> Result<(), HiveError> {
        self.hive_mut().stop().await
    }

    /// Stops the hive and checks that no job is left.
    pub async fn stop(&mut self) {
        if let Err(error) = self.try_stop().await {
            fail("stop", &error);
        }
        tokio::task::yield_now().await;
        let left = self.hive().running_tasks();
        if left > 0 {
            fail("stop", &format_args!("{left} jobs still run"));
        }
    }

    /// The hive, once it is started.
    #[track_caller]
    pub fn hive(&self) -> &Hive {
        match &self.stage {
            Stage::Hive(hive) => hive,
            Stage::Builder(_) => fail("too early", &"the hive is not started"),
        }
    }

    #[track_caller]
    fn hive_mut(&mut self) -> &mut Hive {
        match &mut self.stage {
            Stage::Hive(hive) => hive,
            Stage::Builder(_) => fail("too early", &"the hive is not started"),
        }
    }

    /// An object of the hive, also a private one.
    #[track_caller]
    pub fn get<T: ?Sized + Send + Sync + 'static>(&self) -> Arc<T> {
        self.hive().get_anywhere().unwrap_or_else(|| {
            let name = std::any::type_name::<T>();
            fail(
                "not built",
                &format_args!("{name}; `TestHive::needing::<..>` builds what nothing else needs"),
            )
        })
    }

    /// The health report at a path such as `announcer.job-gc`.
    #[track_caller]
    pub fn health(&self, path: &str) -> Status {
        let tree = self.hive().health();
        tree.at(path).unwrap_or_else(|| {
            let known: Vec<_> = tree.snapshot().iter().map(Status::path).collect();
            fail("no health report", &format_args!("{path}; there are {known:?}"))
        })
    }

    /// The names of the start hooks that have run, in order; jobs are called `job-..`, `timer-job-..`.
    pub fn hook_order(&self) -> Vec<String> {
        self.ran(Phase::Start)
    }

    /// The names of the stop hooks that have run, in order.
    pub fn stop_order(&self) -> Vec<String> {
        self.ran(Phase::Stop)
    }

    fn ran(&self, wanted: Phase) -> Vec<String> {
        let name = |event: &Event| match event {
            Event::HookRan { phase, hook, .. } if *phase == wanted => Some(hook.name.to_string()),
            _ => None,
        };
        self.events.lock().iter().filter_map(name).collect()
    }

    /// All events so far.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }
}
