//! The operations of a reconciler on its target.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use statedb::{Obj, Rows, Snapshot, TableSpec, Watch};
use tokio::time::Instant;

use crate::metrics::Metrics;

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
/// [`blocking`](crate::Builder::blocking) or [`AsyncOps`].
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

/// Asynchronous operations on a target. Their futures are dropped when the agent stops, which must leave the target
/// usable.
pub trait AsyncOps<T: TableSpec>: Send + 'static {
    /// As [`Ops::update`].
    fn update<'a>(&'a mut self, cx: &'a OpCx<'a>, object: &'a mut T) -> BoxFuture<'a, OpResult>;

    /// As [`Ops::delete`].
    fn delete<'a>(&'a mut self, cx: &'a OpCx<'a>, object: &'a T) -> BoxFuture<'a, OpResult>;

    /// As [`Ops::prune`].
    fn prune<'a>(&'a mut self, cx: &'a OpCx<'a>, objects: Vec<Obj<T>>) -> BoxFuture<'a, OpResult>;
}

/// The context of an operation.
pub struct OpCx<'a> {
    /// All tables at the start of the round.
    pub snapshot: &'a Snapshot,
    /// The revision of the object; of the table when pruning or for batches.
    pub revision: u64,
}

/// One object of a batch.
pub struct BatchEntry<O> {
    /// The object.
    pub object: O,
    /// Its revision.
    pub revision: u64,
    /// Success, unless the operation sets an error.
    pub result: OpResult,
}

impl<O> BatchEntry<O> {
    pub(crate) fn new(object: O, revision: u64) -> Self {
        BatchEntry { object, revision, result: Ok(()) }
    }
}

/// The operations of a reconciler.
pub(crate) enum Kind<T> {
    Single(Box<dyn Ops<T>>),
    Batch(Box<dyn BatchOps<T>>),
    Async(Box<dyn AsyncOps<T>>),
}

/// A target and the metrics of its operations.
pub(crate) struct Target<T> {
    pub(crate) kind: Kind<T>,
    pub(crate) metrics: Arc<Metrics>,
    /// Whether durations of operations are measured.
    pub(crate) timed: bool,
}

/// Applies a batch to the target by its batch operation, or by one operation per object. Retries use one operation per
/// object, because a failed batch may not identify the object that caused the failure.
macro_rules! apply {
    ($target:ident, $snapshot:ident, $batch:ident, $retry:ident, $one:ident, $all:ident, $times:ident) => {
        let mut times = $target.metrics.$times.tally();
        let mut last = $target.timed.then(Instant::now);
        let mut time = || {
            if let Some(last) = &mut last {
                let now = Instant::now();
                times.add(now - std::mem::replace(last, now));
            }
        };
        match &mut $target.kind {
            Kind::Batch(ops) if !$retry => {
                $target.metrics.operations.add(1);
                let revision = $batch.last().map_or(0, |entry| entry.revision);
                let cx = OpCx { snapshot: $snapshot, revision };
                guard_batch($batch, |batch| ops.$all(&cx, batch));
                time();
            }
            Kind::Async(ops) => {
                $target.metrics.operations.add($batch.len());
                for BatchEntry { object, revision, result } in $batch {
                    let cx = OpCx { snapshot: $snapshot, revision: *revision };
                    *result = guard_async(|| ops.$one(&cx, object)).await;
                    time();
                }
            }
            kind => {
                $target.metrics.operations.add($batch.len());
                let ops = kind.single();
                for BatchEntry { object, revision, result } in $batch {
                    let cx = OpCx { snapshot: $snapshot, revision: *revision };
                    *result = guard(|| ops.$one(&cx, object));
                    time();
                }
            }
        }
    };
}

impl<T: TableSpec> Target<T> {
    pub(crate) async fn update(&mut self, snapshot: &Snapshot, batch: &mut [BatchEntry<T>], retry: bool) {
        apply!(self, snapshot, batch, retry, update, update_batch, updates);
    }

    pub(crate) async fn delete(
        &mut self,
        snapshot: &Snapshot,
        batch: &mut [BatchEntry<Obj<T>>],
        updates: &[BatchEntry<T>],
        retry: bool,
    ) {
        if let Kind::Batch(ops) = &mut self.kind
            && !retry
            && let Some(last) = updates.last()
        {
            let cx = OpCx { snapshot, revision: last.revision };
            // The announcement only optimizes the operations below, so its failure is logged and they run all the same.
            let announced = guard(|| {
                ops.announce_updates(&cx, updates);
                Ok(())
            });
            if let Err(error) = announced {
                tracing::error!(%error, "Updates of a round could not be announced");
            }
        }
        apply!(self, snapshot, batch, retry, delete, delete_batch, deletes);
    }

    pub(crate) async fn prune(
        &mut self,
        snapshot: &Snapshot,
        revision: u64,
        objects: Rows<'_, T>,
    ) -> OpResult {
        let start = Instant::now();
        let cx = OpCx { snapshot, revision };
        let result = match &mut self.kind {
            Kind::Async(ops) => {
                let objects = objects.cloned().collect();
                guard_async(|| ops.prune(&cx, objects)).await
            }
            kind => guard(|| kind.single().prune(&cx, objects)),
        };
        self.metrics.prunes.observe(start.elapsed());
        self.metrics.prune_errors.add(usize::from(result.is_err()));
        result
    }
}

impl<T: TableSpec> Kind<T> {
    fn single(&mut self) -> &mut dyn Ops<T> {
        match self {
            Kind::Single(ops) => &mut **ops,
            Kind::Batch(ops) => &mut **ops,
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
