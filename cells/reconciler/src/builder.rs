//! The builder of a reconciler.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use statedb::{RwTable, TableSpec};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::ops::{BatchOps, Kind, Ops, Target, guarded};
use crate::progress::{Handle, Progress, Prunes};
use crate::refresh::Refresher;
use crate::report::Report;
use crate::retries::{Backoff, Retries};
use crate::round::{Core, Work};
use crate::run::{Reconciler, Rounds};
use crate::status::Status;
use crate::waits::Waits;

/// Settings of a reconciler, from [`Reconciler::builder`]. [`status`](Builder::status) and one of the `ops` are
/// required, everything else has a default.
#[must_use]
pub struct Builder<T: TableSpec, S = (), O = ()> {
    table: RwTable<T>,
    status: S,
    target: O,
    name: String,
    options: Options,
    merge: Option<Merge<T>>,
    report: Box<dyn FnMut(Report) + Send>,
}

type Get<T> = Box<dyn Fn(&T) -> Status + Send + Sync>;
type Set<T> = Box<dyn Fn(&mut T, Status) + Send + Sync>;
pub(crate) type Merge<T> = Box<dyn Fn(&mut T, &T) + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) round_size: usize,
    pub(crate) rounds_per_second: u32,
    pub(crate) rounds_burst: u32,
    pub(crate) prune: Duration,
    pub(crate) refresh: Duration,
    pub(crate) refreshes_per_second: usize,
    pub(crate) blocking: bool,
    shared: bool,
    backoff: Backoff,
}

/// The closures that read and write the status of an object.
pub struct StatusField<T> {
    get: Get<T>,
    set: Set<T>,
}

impl<T> StatusField<T> {
    /// Returns the status, or an error if the closure panicked.
    pub(crate) fn get(&self, object: &T) -> Result<Status, String> {
        guarded("reading the status", || (self.get)(object))
    }

    /// Returns the object with the status, or an error if the closure panicked.
    pub(crate) fn set(&self, mut object: T, status: Status) -> Result<T, String> {
        guarded("writing the status", || {
            (self.set)(&mut object, status);
            object
        })
    }
}

/// The chosen operations.
pub struct Operations<T>(Kind<T>);

impl<T: TableSpec, S, O> fmt::Debug for Builder<T, S, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("table", &T::NAME).field("name", &self.name).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for StatusField<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusField").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Operations<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operations").finish_non_exhaustive()
    }
}

impl<T: TableSpec + Clone> Reconciler<T> {
    /// Returns a builder of a reconciler that drives a target from this table. It needs the write handle for the
    /// statuses.
    pub fn builder(table: RwTable<T>) -> Builder<T> {
        Builder {
            name: String::new(),
            table,
            status: (),
            target: (),
            options: Options {
                round_size: 1000,
                rounds_per_second: 1000,
                rounds_burst: 100,
                prune: Duration::from_secs(3600),
                refresh: Duration::from_secs(1800),
                refreshes_per_second: 100,
                blocking: false,
                shared: false,
                backoff: Backoff { min: Duration::from_millis(100), max: Duration::from_secs(60) },
            },
            merge: None,
            report: Box::new(|_| ()),
        }
    }
}

impl<T: TableSpec + Clone, S, O> Builder<T, S, O> {
    /// Sets a name that distinguishes this reconciler from others of the same module in job names, health, metrics and
    /// logs. Default: none.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the closures that read and write this reconciler's status in an object. A panic in one of them is
    /// a failure of the object.
    pub fn status(
        self,
        get: impl Fn(&T) -> &Status + Send + Sync + 'static,
        set: impl Fn(&mut T, Status) + Send + Sync + 'static,
    ) -> Builder<T, StatusField<T>, O> {
        self.with_status(move |object| get(object).clone(), set)
    }

    /// As [`status`](Self::status), for a status that is computed: `|o| o.statuses.get("name")`.
    #[cfg(feature = "unstable")]
    pub fn status_value(
        self,
        get: impl Fn(&T) -> Status + Send + Sync + 'static,
        set: impl Fn(&mut T, Status) + Send + Sync + 'static,
    ) -> Builder<T, StatusField<T>, O> {
        self.with_status(get, set)
    }

    fn with_status(
        self,
        get: impl Fn(&T) -> Status + Send + Sync + 'static,
        set: impl Fn(&mut T, Status) + Send + Sync + 'static,
    ) -> Builder<T, StatusField<T>, O> {
        let status = StatusField { get: Box::new(get), set: Box::new(set) };
        let Builder { table, target, name, options, merge, report, .. } = self;
        Builder { table, status, target, name, options, merge, report }
    }

    /// Sets operations on one object at a time.
    pub fn ops(self, ops: impl Ops<T>) -> Builder<T, S, Operations<T>> {
        self.target(Kind::Single(Box::new(ops)))
    }

    /// Sets operations on many objects at once; retries use their single operations.
    pub fn batch_ops(self, ops: impl BatchOps<T>) -> Builder<T, S, Operations<T>> {
        self.target(Kind::Batch(Box::new(ops)))
    }

    /// Sets asynchronous operations.
    #[cfg(feature = "unstable")]
    pub fn async_ops(self, ops: impl crate::AsyncOps<T>) -> Builder<T, S, Operations<T>> {
        self.target(Kind::Async(Box::new(ops)))
    }

    fn target(self, target: Kind<T>) -> Builder<T, S, Operations<T>> {
        let Builder { table, status, name, options, merge, report, .. } = self;
        Builder { table, status, target: Operations(target), name, options, merge, report }
    }

    /// Sets a closure that copies fields which an operation has set into an object that was written concurrently:
    /// `|current, reconciled| current.handle = reconciled.handle`. Without it only the status is copied. A panic
    /// counts as a failure of the object.
    pub fn merge(mut self, merge: impl Fn(&mut T, &T) + Send + Sync + 'static) -> Self {
        self.merge = Some(Box::new(merge));
        self
    }

    /// Sets the maximum number of objects in a round (default 1000), the rate limit of rounds per second (1000) and its
    /// burst (100).
    pub fn round(mut self, size: usize, per_second: u32, burst: u32) -> Self {
        self.options.round_size = size.max(1);
        self.options.rounds_per_second = per_second.max(1);
        self.options.rounds_burst = burst.max(1);
        self
    }

    /// Sets the backoff: `min * 2^n` after the n-th failure in a row, at most `max`. Default: 100 ms, 1 minute.
    pub fn retry(mut self, min: Duration, max: Duration) -> Self {
        self.options.backoff = Backoff { min, max };
        self
    }

    /// Sets the interval of prunes. The first runs when the table is initialized and every object that it has by
    /// then has been tried. Default: one hour; zero: only on request.
    pub fn prune(mut self, interval: Duration) -> Self {
        self.options.prune = interval;
        self
    }

    /// Sets the time after which a reconciled object is reconciled again, and the rate limit of such refreshes.
    /// Default: 30 minutes, 100 per second; zero: never.
    pub fn refresh(mut self, interval: Duration, per_second: usize) -> Self {
        self.options.refresh = interval;
        self.options.refreshes_per_second = per_second.max(1);
        self
    }

    /// Declares that other reconcilers write their statuses into the same objects. Their writes raise an object's
    /// revision above that of the change that a caller waits for, so a failure counts for all revisions of its round.
    /// Without this,
    /// [`Handle::wait_until_ok`] could miss it.
    pub fn shared(mut self) -> Self {
        self.options.shared = true;
        self
    }

    /// Runs the operations where they may block, for operations that take longer than a few microseconds: as a
    /// job the reconciler has its own thread; otherwise it uses tokio's blocking threads, at two thread
    /// switches a round.
    pub fn blocking(mut self) -> Self {
        self.options.blocking = true;
        self
    }

    /// Sets a closure that receives the state after each round that was not empty. A panic is logged.
    pub fn report(mut self, report: impl FnMut(Report) + Send + 'static) -> Self {
        self.report = Box::new(report);
        self
    }
}

impl<T: TableSpec + Clone> Builder<T, StatusField<T>, Operations<T>> {
    /// Returns the handle, and the reconciler to [`run`](Reconciler::run), which processes all existing rows and all
    /// changes of the table from now on.
    pub fn build(self) -> (Handle, Reconciler<T>) {
        let (progress, watched) = watch::channel(Progress::default());
        let name = Arc::<str>::from(self.name);
        let (prune, metrics) = (Arc::new(Notify::new()), Arc::new(Metrics::new(name.clone())));
        self.table.db().attach(&metrics);
        let (prunes, counted) = watch::channel(Prunes::default());
        let handle = Handle {
            name: name.clone(),
            progress: watched,
            prune: prune.clone(),
            prunes: counted,
            metrics: metrics.clone(),
        };
        let (status, options) = (Arc::new(self.status), self.options);
        let clock = Clock { wall: SystemTime::now(), start: Instant::now() };
        let refresher = (!options.refresh.is_zero()).then(|| Refresher {
            table: self.table.clone(),
            status: status.clone(),
            clock,
            age: options.refresh,
            per_second: options.refreshes_per_second,
            seen: 0,
        });
        let core = Core {
            changes: self.table.changes().named(format!("reconciler {name}").trim_end()),
            table: self.table,
            status,
            merge: self.merge,
            target: Some(Target { kind: self.target.0, metrics: metrics.clone(), timed: false }),
            retries: Retries::new(options.backoff),
            waits: Waits::new(),
            clock,
            round_size: options.round_size,
            blocking: options.blocking,
            shared: options.shared,
            floor: 1,
            metrics,
            spare: Work::default(),
        };
        let rounds = Rounds {
            core,
            name,
            options,
            progress,
            prune,
            prunes,
            report: self.report,
            prune_error: None,
            #[cfg(feature = "hive")]
            job: None,
        };
        (handle, Reconciler { rounds, refresher })
    }
}

/// A wall clock derived from tokio's clock, so that tests can use virtual time and steps of the system clock have no
/// effect.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    wall: SystemTime,
    start: Instant,
}

impl Clock {
    pub(crate) fn at(&self, now: Instant) -> SystemTime {
        self.wall + now.duration_since(self.start)
    }
}
