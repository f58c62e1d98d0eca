//! A table that is derived from another one, row by row.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::future::OptionFuture;
use hive::job::OneShotJob;
use hive::{Backoff, JobCx, JobGroup};
use tokio::time::{Instant, sleep_until};

use crate::any::{TableDisplay, label};
use crate::changes::{Change, Changes};
use crate::db::Snapshot;
use crate::init::Initializer;
use crate::key::KeyBuf;
use crate::query::Query;
use crate::spec::TableSpec;
use crate::table::{RwTable, Table};
use crate::watch::Watch;
use crate::writer::Writer;

/// The default maximum number of rows in one transaction, after which the job yields to other tasks.
const BATCH: usize = 1000;

/// The first and the longest wait before a failed row is retried.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The derivation of rows of one table from rows of another.
#[derive(Clone, Debug)]
pub enum Derive<Out> {
    /// Insert the row, or replace the one with its primary key.
    Insert(Out),
    /// Replace the row with its primary key, if there is one.
    Update(Out),
    /// Delete the row that the query finds, if there is one.
    Delete(Query<Out>),
    /// Do nothing.
    Skip,
}

/// A job that derives a table from another one, row by row.
///
/// Each change of the input - a row as it is now, or as it was before it was deleted - is passed to a function that
/// returns the operation on the output. All outputs of a batch are one transaction. The output is initialized once the
/// input is and all of its rows were processed: in the transaction that writes the last of them.
///
/// A row for which the function panics, or whose output has the unique key of another row, does not affect the others:
/// it is reported in the job's health, and retried with backoff and when it changes. The output does not become
/// initialized while any row fails.
///
/// ```
/// use std::sync::Arc;
///
/// use hive::prelude::*;
/// use serde::Serialize;
/// use statedb::{Derive, Derived, Query, RwTable, Table, TableDisplay, TableSpec};
///
/// # #[derive(Clone, Debug, Serialize)]
/// # struct Device { name: String, up: bool }
/// # impl TableSpec for Device {
/// #     const NAME: &'static str = "devices";
/// #     type Key<'a> = &'a str;
/// #     fn key(&self) -> &str { &self.name }
/// # }
/// # impl TableDisplay for Device {
/// #     fn columns() -> &'static [&'static str] { &["Name"] }
/// #     fn row(&self) -> Vec<String> { vec![self.name.clone()] }
/// # }
/// # #[derive(Clone, Debug, Serialize)]
/// # struct Uplink { device: String }
/// # impl TableSpec for Uplink {
/// #     const NAME: &'static str = "uplinks";
/// #     type Key<'a> = &'a str;
/// #     fn key(&self) -> &str { &self.device }
/// # }
/// # impl TableDisplay for Uplink {
/// #     fn columns() -> &'static [&'static str] { &["Device"] }
/// #     fn row(&self) -> Vec<String> { vec![self.device.clone()] }
/// # }
/// fn derive(jobs: JobGroup, devices: Arc<Table<Device>>, uplinks: Arc<RwTable<Uplink>>) {
///     let uplink = |device: &Device, deleted: bool| match device.up && !deleted {
///         true => Derive::Insert(Uplink { device: device.name.clone() }),
///         false => Derive::Delete(Query::primary(device.name.as_str())),
///     };
///     Derived::new("uplinks", &devices, &uplinks, uplink).job(&jobs).add();
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let fill = |devices: Arc<RwTable<Device>>| {
///     devices.transact(|w| w.insert(Device { name: "eth0".into(), up: true }));
///     devices.transact(|w| w.insert(Device { name: "eth1".into(), up: false }));
/// };
/// # let cells = [statedb::cell(), module("m", "Devices",
/// #     [statedb::table::<Device>(), statedb::table::<Uplink>(), invoke(fill), invoke(derive)])];
/// # let mut hive = TestHive::new(cells);
/// # hive.start().await;
/// # let uplinks = hive.get::<RwTable<Uplink>>();
/// uplinks.wait_initialized().await;
/// assert_eq!(uplinks.all(&uplinks.snapshot()).next().unwrap().device, "eth0");
/// # drop(uplinks);
/// # hive.finish().await;
/// # }
/// ```
#[must_use = "`job(..).add()` adds the job"]
pub struct Derived<In: TableDisplay, Out: TableDisplay> {
    name: String,
    input: Table<In>,
    output: RwTable<Out>,
    derive: Function<In, Out>,
    batch: usize,
    initializer: Initializer<Out>,
}

type Function<In, Out> = Box<dyn FnMut(&In, bool) -> Derive<Out> + Send>;

/// The job's state.
struct Deriving<In: TableDisplay, Out: TableDisplay> {
    input: Table<In>,
    output: RwTable<Out>,
    derive: Function<In, Out>,
    batch: usize,
    initializer: Option<Initializer<Out>>,
    changes: Changes<In>,
    failed: BTreeMap<KeyBuf, Failed<In>>,
}

/// A failed row, to be retried.
struct Failed<In> {
    change: Change<In>,
    error: String,
    backoff: Backoff,
    next: Instant,
}

impl<In: TableDisplay, Out: TableDisplay> Derived<In, Out> {
    /// Creates the derivation. `derive` gets a row of the input and whether it was deleted. Registers an initializer
    /// with the job's name: from now on the output is not initialized until the job has processed the input.
    #[track_caller]
    pub fn new(
        name: &str,
        input: &Table<In>,
        output: &RwTable<Out>,
        derive: impl FnMut(&In, bool) -> Derive<Out> + Send + 'static,
    ) -> Self {
        let (initializer, _) = output.transact(|w| w.register_initializer(name));
        Derived {
            name: name.to_owned(),
            input: input.clone(),
            output: output.clone(),
            derive: Box::new(derive),
            batch: BATCH,
            initializer,
        }
    }

    /// Sets the maximum number of rows in one transaction, after which the job yields to other tasks; 1,000 by default.
    pub fn batch(mut self, rows: usize) -> Self {
        self.batch = rows.max(1);
        self
    }

    /// Returns the job, of the same name, to be added.
    #[track_caller]
    pub fn job(self, jobs: &JobGroup) -> OneShotJob {
        let Derived { name, input, output, derive, batch, initializer } = self;
        jobs.one_shot(name.clone(), move |cx| async move {
            let changes = input.changes().named(&name);
            let (initializer, failed) = (Some(initializer), BTreeMap::new());
            Deriving { input, output, derive, batch, initializer, changes, failed }.run(cx).await;
            Ok(())
        })
    }
}

impl<In: TableDisplay, Out: TableDisplay> Deriving<In, Out> {
    async fn run(mut self, cx: JobCx) {
        let mut rows = 0;
        loop {
            let (more, completes) = {
                let _working = cx.working();
                let snapshot = self.input.snapshot();
                let (worked_on, more, completes) = self.step(&snapshot, Instant::now());
                rows += worked_on;
                (more, completes)
            };
            match self.failed.values().next() {
                None => cx.health.ok(format_args!("{rows} rows derived")),
                Some(first) => {
                    cx.health.degraded(format_args!("{} rows fail", self.failed.len()), &first.error);
                }
            }
            let retry = self.failed.values().map(|failed| failed.next).min();
            tokio::select! {
                biased;
                () = cx.cancelled() => break,
                () = async {
                    more.changed().await;
                    tokio::task::yield_now().await;
                } => {}
                Some(()) = OptionFuture::from(completes.as_ref().map(Watch::changed)), if self.initializer.is_some() => {}
                () = sleep_until(retry.unwrap_or_else(Instant::now)), if retry.is_some() => {}
            }
        }
        if let Some(initializer) = self.initializer {
            initializer.abandon();
        }
    }

    /// Processes a batch of changes up to the snapshot, and failed rows with a due retry. Returns the number of
    /// rows, a watch for more changes, and, unless the input is initialized, a watch for that.
    fn step(&mut self, snapshot: &Snapshot, now: Instant) -> (usize, Watch, Option<Watch>) {
        let (complete, completes) = self.input.initialized_watch(snapshot);
        let completes = (!complete).then_some(completes);
        let (batch, mut more) = self.changes.read(snapshot, self.batch);
        let mut work: Vec<(Change<In>, Option<Backoff>)> = Vec::new();
        for change in batch {
            // The new change supersedes the failed one.
            self.failed.remove(&key(&change));
            work.push((change, None));
        }
        let due: Vec<KeyBuf> =
            self.failed.iter().filter(|(_, row)| row.next <= now).map(|(key, _)| key.clone()).collect();
        work.extend(
            due.iter().filter_map(|key| self.failed.remove(key)).map(|row| (row.change, Some(row.backoff))),
        );
        let finish = complete
            && self.initializer.is_some()
            && self.failed.is_empty()
            && self.changes.seen() >= self.input.revision(snapshot);
        if work.is_empty() && !finish {
            return (0, more, completes);
        }
        let rows: Vec<&Change<In>> = work.iter().map(|(change, _)| change).collect();
        let errors = match caught(|| self.write(&rows, finish)) {
            Ok(errors) => errors,
            // `write` catches panics of `derive`, so an index function of the output has panicked and the transaction
            // was aborted. One transaction for each row isolates the faulty ones.
            Err(_) => {
                more = Watch::closed();
                let one = |(at, row): (usize, &&Change<In>)| {
                    let error = caught(|| self.write(&[row], false));
                    error
                        .map_or_else(Some, |errors| errors.into_iter().next().map(|(_, error)| error))
                        .map(|error| (at, error))
                };
                rows.iter().enumerate().filter_map(one).collect()
            }
        };
        let count = work.len();
        let mut errors = errors.into_iter().peekable();
        for (at, (change, backoff)) in work.into_iter().enumerate() {
            if let Some((_, error)) = errors.next_if(|(which, _)| *which == at) {
                let mut backoff = backoff.unwrap_or_else(|| Backoff::exponential(RETRY.0, RETRY.1));
                let next = now + backoff.next_wait().unwrap_or(RETRY.1);
                let error = format!("{} `{}`: {error}", In::NAME, label(&*change.object));
                if backoff.attempts() == 1 {
                    tracing::warn!(table = Out::NAME, %error, "A row could not be derived");
                }
                self.failed.insert(key(&change), Failed { change, error, backoff, next });
            }
        }
        (count, more, completes)
    }

    /// Derives rows and writes the results in one transaction, which also completes the initializer if `finish` is set
    /// and no row failed. Returns errors by position.
    fn write(&mut self, rows: &[&Change<In>], finish: bool) -> Vec<(usize, String)> {
        let mut errors = Vec::new();
        let mut derived = Vec::with_capacity(rows.len());
        for (at, change) in rows.iter().enumerate() {
            match caught(|| (self.derive)(&change.object, change.deleted)) {
                Ok(Derive::Skip) => {}
                Ok(outcome) => derived.push((at, outcome)),
                Err(panic) => errors.push((at, panic)),
            }
        }
        let initializer = &mut self.initializer;
        self.output.transact(|w| {
            for (at, outcome) in derived {
                if let Err(error) = apply(w, outcome) {
                    errors.push((at, error));
                }
            }
            if finish
                && errors.is_empty()
                && let Some(initializer) = initializer.take()
            {
                initializer.done(w);
            }
        });
        errors.sort_unstable_by_key(|(at, _)| *at);
        errors
    }
}

fn apply<Out: TableSpec>(w: &mut Writer<'_, Out>, outcome: Derive<Out>) -> Result<(), String> {
    let inserted = match outcome {
        Derive::Insert(row) => w.try_insert(row),
        Derive::Update(row) if w.get(Query::of(&row)).is_some() => w.try_insert(row),
        Derive::Delete(query) => Ok(w.delete(query)),
        Derive::Update(_) | Derive::Skip => Ok(None),
    };
    inserted.map(drop).map_err(|conflict| conflict.to_string())
}

fn key<T: TableSpec>(change: &Change<T>) -> KeyBuf {
    KeyBuf::of(&change.object.key())
}

/// Returns the result, or the message of the panic.
fn caught<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| format!("panicked: {}", panic_message(&*panic)))
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
