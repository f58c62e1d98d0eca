//! The operations of a reconciler on its target.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

#[cfg(feature = "unstable")]
use futures::FutureExt;
#[cfg(feature = "unstable")]
use futures::future::BoxFuture;
use statedb::{Obj, Rows, Snapshot, Table, TableSpec, Watch};
use tokio::time::Instant;

use crate::blocking::run;
use crate::metrics::{Histogram, Metrics, Tally};

/// The error of an operation, which the object's status and the health report.
pub type OpError = Box<dyn std::error::Error + Send + Sync>;

/// The result of an operation.
pub type OpResult = Result<(), OpError>;

/// The outcome of an update that waits for a change elsewhere, such as in another cell's table. It is not a failure:
/// the object stays pending, with the changes that the operation made to it, and the operation is repeated when the
/// watch closes, at the deadline, or when the object changes. Meanwhile other objects are reconciled.
///
/// ```
/// # use reconciler::{OpResult, Waiting};
/// fn policy_is_realized(revision: Result<u64, statedb::Watch>) -> OpResult {
///     revision.map(drop).map_err(|pending| Waiting::on(pending).into())
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("waits for a change elsewhere")]
pub struct Waiting {
    pub(crate) watch: Watch,
    pub(crate) deadline: Option<Instant>,
}

impl Waiting {
    /// Waits until the watch closes.
    pub fn on(watch: Watch) -> Waiting {
        Waiting { watch, deadline: None }
    }

    /// Limits the wait: the operation is repeated at the deadline even if the watch has not closed.
    #[must_use]
    pub fn until(self, deadline: Instant) -> Waiting {
        Waiting { deadline: Some(deadline), ..self }
    }
}

/// Operations on a target, such as a kernel map. They must be idempotent: they are repeated after a failure, for a
/// refresh and after a restart. A panic counts as an error.
///
/// They run on the reconciler's task, one at a time, so they should take microseconds. Slower operations use
/// [`blocking`](crate::Builder::blocking).
pub trait Ops<T: TableSpec>: Send + 'static {
    /// Upserts the object into the target. Changes to the object (such as a handle of the target) are stored with the
    /// status unless the object was written concurrently.
    fn update(&mut self, cx: &OpCx<'_>, object: &mut T) -> OpResult;

    /// Removes the object from the target; a missing object is not an error.
    fn delete(&mut self, cx: &OpCx<'_>, object: &T) -> OpResult;

    /// Removes everything from the target that is not among the objects. Called when the table is known to be complete.
    fn prune(&mut self, cx: &OpCx<'_>, objects: Rows<'_, T>) -> OpResult;
}

/// Operations on many objects at once, for targets with cheaper batch operations. Retries use the single operations.
pub trait BatchOps<T: TableSpec>: Ops<T> {
    /// As [`Ops::update`] for each entry; sets the result of those that failed.
    fn update_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<T>]);

    /// As [`Ops::delete`] for each entry; sets the result of those that failed. Runs before the updates of a round.
    fn delete_batch(&mut self, cx: &OpCx<'_>, batch: &mut [BatchEntry<Obj<T>>]);

    /// Announces the updates of a round before its deletes, if it has both, so that entries which a deleted object
    /// releases and an updated one needs can stay in place.
    fn announce_updates(&mut self, _cx: &OpCx<'_>, _updates: &[BatchEntry<T>]) {}
}

/// Asynchronous operations on a target. Their futures are dropped when the reconciler stops, which must leave the target
/// usable.
#[cfg(feature = "unstable")]
pub trait AsyncOps<T: TableSpec>: Send + 'static {
    /// As [`Ops::update`].
    fn update<'a>(&'a mut self, cx: &'a OpCx<'a>, object: &'a mut T) -> BoxFuture<'a, OpResult>;

    /// As [`Ops::delete`].
    fn delete<'a>(&'a mut self, cx: &'a OpCx<'a>, object: &'a T) -> BoxFuture<'a, OpResult>;

    /// As [`Ops::prune`].
    fn prune<'a>(&'a mut self, cx: &'a OpCx<'a>, objects: Vec<Obj<T>>) -> BoxFuture<'a, OpResult>;
}

/// The context of an operation.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OpCx<'a> {
    /// All tables at the start of the round.
    pub snapshot: &'a Snapshot,
    /// The revision of the object; of the table when pruning or for batches.
    pub revision: u64,
}

impl<'a> OpCx<'a> {
    /// Returns a context, for tests of operations.
    pub fn new(snapshot: &'a Snapshot, revision: u64) -> Self {
        OpCx { snapshot, revision }
    }
}

/// One object of a batch.
#[derive(Debug)]
#[non_exhaustive]
pub struct BatchEntry<O> {
    /// The object.
    pub object: O,
    /// Its revision.
    pub revision: u64,
    /// Success, unless the operation sets an error.
    pub result: OpResult,
}

impl<O> BatchEntry<O> {
    /// Returns an entry that has succeeded so far.
    pub fn new(object: O, revision: u64) -> Self {
        BatchEntry { object, revision, result: Ok(()) }
    }
}

/// The operations of a reconciler.
pub(crate) enum Kind<T> {
    Single(Box<dyn Ops<T>>),
    Batch(Box<dyn BatchOps<T>>),
    #[cfg(feature = "unstable")]
    Async(Box<dyn AsyncOps<T>>),
}

/// A target and the metrics of its operations.
pub(crate) struct Target<T> {
    pub(crate) kind: Kind<T>,
    pub(crate) metrics: Arc<Metrics>,
    /// Whether durations of operations are measured.
    pub(crate) timed: bool,
}

/// The objects of a round to delete and to update, with the results of their operations.
pub(crate) struct Batches<T> {
    pub(crate) deletes: Vec<BatchEntry<Obj<T>>>,
    pub(crate) updates: Vec<BatchEntry<T>>,
    /// Whether they have failed before. Retries use one operation per object, because a failed batch may not identify
    /// the object that caused the failure.
    pub(crate) retry: bool,
}

impl<T: TableSpec> Target<T> {
    /// Applies the objects of a round to the target, on this task or where it may block: deletes first, to free
    /// capacity, then updates.
    pub(crate) async fn apply(
        mut self,
        may_block: bool,
        snapshot: Snapshot,
        mut batches: Batches<T>,
    ) -> (Self, Batches<T>) {
        #[cfg(feature = "unstable")]
        if let Kind::Async(_) = self.kind {
            self.apply_async(&snapshot, &mut batches).await;
            return (self, batches);
        }
        run(may_block, move || {
            self.apply_here(&snapshot, &mut batches);
            (self, batches)
        })
        .await
    }

    fn apply_here(&mut self, snapshot: &Snapshot, batches: &mut Batches<T>) {
        let Batches { deletes, updates, retry } = batches;
        let Target { kind, metrics, timed } = self;
        let cx = |revision| OpCx { snapshot, revision };
        match kind {
            Kind::Batch(ops) if !*retry => {
                if let Some(last) = deletes.last() {
                    let cx = cx(last.revision);
                    announce(&mut **ops, snapshot, updates);
                    metrics.operations.add(1);
                    let start = timed.then(Instant::now);
                    guard_batch(deletes, |batch| ops.delete_batch(&cx, batch));
                    start.into_iter().for_each(|start| metrics.deletes.observe(start.elapsed()));
                }
                if let Some(last) = updates.last() {
                    let cx = cx(last.revision);
                    metrics.operations.add(1);
                    let start = timed.then(Instant::now);
                    guard_batch(updates, |batch| ops.update_batch(&cx, batch));
                    start.into_iter().for_each(|start| metrics.updates.observe(start.elapsed()));
                }
            }
            kind => {
                let ops = kind.single();
                metrics.operations.add(deletes.len() + updates.len());
                let mut times = Times::start(*timed, &metrics.deletes);
                for BatchEntry { object, revision, result } in deletes {
                    *result = guard(|| ops.delete(&cx(*revision), object));
                    times.lap();
                }
                drop(times);
                let mut times = Times::start(*timed, &metrics.updates);
                for BatchEntry { object, revision, result } in updates {
                    *result = guard(|| ops.update(&cx(*revision), object));
                    times.lap();
                }
            }
        }
    }

    #[cfg(feature = "unstable")]
    async fn apply_async(&mut self, snapshot: &Snapshot, batches: &mut Batches<T>) {
        let Target { kind: Kind::Async(ops), metrics, timed } = self else { return };
        metrics.operations.add(batches.deletes.len() + batches.updates.len());
        let mut times = Times::start(*timed, &metrics.deletes);
        for BatchEntry { object, revision, result } in &mut batches.deletes {
            let cx = OpCx { snapshot, revision: *revision };
            *result = guard_async(|| ops.delete(&cx, object)).await;
            times.lap();
        }
        drop(times);
        let mut times = Times::start(*timed, &metrics.updates);
        for BatchEntry { object, revision, result } in &mut batches.updates {
            let cx = OpCx { snapshot, revision: *revision };
            *result = guard_async(|| ops.update(&cx, object)).await;
            times.lap();
        }
    }

    /// Removes everything from the target that is not among the rows of a table, on this task or where it may block.
    pub(crate) async fn prune(
        mut self,
        may_block: bool,
        snapshot: Snapshot,
        table: Table<T>,
    ) -> (Self, OpResult) {
        let start = Instant::now();
        let revision = table.revision(&snapshot);
        let (target, result) = match &mut self.kind {
            #[cfg(feature = "unstable")]
            Kind::Async(ops) => {
                let cx = OpCx { snapshot: &snapshot, revision };
                let objects = table.all(&snapshot).cloned().collect();
                let result = guard_async(|| ops.prune(&cx, objects)).await;
                (self, result)
            }
            _ => {
                let prune = move || {
                    let cx = OpCx { snapshot: &snapshot, revision };
                    let result = guard(|| self.kind.single().prune(&cx, table.all(&snapshot)));
                    (self, result)
                };
                run(may_block, prune).await
            }
        };
        target.metrics.prunes.observe(start.elapsed());
        target.metrics.prune_errors.add(usize::from(result.is_err()));
        (target, result)
    }
}

/// Announces the updates of a round that has deletes as well. The announcement only optimizes the operations that follow,
/// so its failure is logged and they run all the same.
fn announce<T: TableSpec>(ops: &mut dyn BatchOps<T>, snapshot: &Snapshot, updates: &[BatchEntry<T>]) {
    let Some(last) = updates.last() else { return };
    let announced = guard(|| {
        ops.announce_updates(&OpCx { snapshot, revision: last.revision }, updates);
        Ok(())
    });
    if let Err(error) = announced {
        tracing::error!(%error, "Updates of a round could not be announced");
    }
}

/// The durations of consecutive operations.
struct Times<'m> {
    times: Tally<'m>,
    last: Option<Instant>,
}

impl<'m> Times<'m> {
    fn start(timed: bool, histogram: &'m Histogram) -> Self {
        Times { times: histogram.tally(), last: timed.then(Instant::now) }
    }

    /// Adds the time since the last operation has ended.
    fn lap(&mut self) {
        if let Some(last) = &mut self.last {
            let now = Instant::now();
            self.times.add(now - std::mem::replace(last, now));
        }
    }
}

impl<T: TableSpec> Kind<T> {
    fn single(&mut self) -> &mut dyn Ops<T> {
        match self {
            Kind::Single(ops) => &mut **ops,
            Kind::Batch(ops) => &mut **ops,
            #[cfg(feature = "unstable")]
            Kind::Async(_) => unreachable!("asynchronous operations are awaited"),
        }
    }
}

/// Runs a closure of the reconciler's user. A panic becomes an error that names the closure.
pub(crate) fn guarded<R>(what: &str, closure: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(closure)).map_err(|panic| format!("{what} {}", panicked(&*panic)))
}

fn guard(op: impl FnOnce() -> OpResult) -> OpResult {
    catch_unwind(AssertUnwindSafe(op)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

#[cfg(feature = "unstable")]
async fn guard_async<'a>(op: impl FnOnce() -> BoxFuture<'a, OpResult>) -> OpResult {
    match catch_unwind(AssertUnwindSafe(op)) {
        Ok(future) => {
            AssertUnwindSafe(future).catch_unwind().await.unwrap_or_else(|panic| Err(panicked(&*panic)))
        }
        Err(panic) => Err(panicked(&*panic)),
    }
}

/// Runs a batch operation. After a panic all entries have failed: it is unknown which of them were applied, and the
/// retries use one operation per object.
fn guard_batch<O>(batch: &mut [BatchEntry<O>], op: impl FnOnce(&mut [BatchEntry<O>])) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| op(batch))) {
        batch.iter_mut().for_each(|entry| entry.result = Err(panicked(&*panic)));
    }
}

fn panicked(panic: &(dyn Any + Send)) -> OpError {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("without a message")).into()
}
