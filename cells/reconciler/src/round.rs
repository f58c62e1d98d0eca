//! The rounds: changes become operations, whose results become statuses.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use statedb::{Changes, KeyBuf, Obj, Query, RwTable, Snapshot, TableSpec, Watch};
use tokio::time::Instant;

use crate::builder::{Clock, Merge, StatusField};
use crate::metrics::{Listener, Metrics};
use crate::ops::{BatchEntry, Batches, OpResult, Target, Waiting, guarded};
use crate::progress::Progress;
use crate::report::Report;
use crate::retries::{Due, Failure, Retries};
use crate::status::{Status, StatusKind};
use crate::waits::Waits;

/// The state of the rounds: the table, its unread changes, the target, retries and waits.
pub(crate) struct Core<T: TableSpec> {
    pub(crate) table: RwTable<T>,
    pub(crate) changes: Changes<T>,
    pub(crate) status: Arc<StatusField<T>>,
    pub(crate) merge: Option<Merge<T>>,
    /// None while an operation runs: it may run on a blocking thread, which takes ownership of the target.
    pub(crate) target: Option<Target<T>>,
    pub(crate) retries: Retries<T>,
    pub(crate) waits: Waits,
    pub(crate) clock: Clock,
    pub(crate) round_size: usize,
    pub(crate) blocking: bool,
    pub(crate) shared: bool,
    /// The first revision of the round: objects that are pending in it became pending at this revision or later.
    pub(crate) floor: u64,
    pub(crate) metrics: Arc<Metrics>,
    /// Empty buffers that the next batch reuses.
    pub(crate) spare: Work<T>,
}

/// The outcome of a round.
pub(crate) struct Round {
    /// Whether objects were reconciled.
    pub(crate) worked: bool,
    /// Whether an operation failed.
    pub(crate) failed: bool,
    /// Whether the table or the number of failing objects has changed.
    pub(crate) changed: bool,
    /// Closes when there are more changes.
    pub(crate) more: Watch,
}

/// The objects to delete and to update. `originals` are the rows to update as they are in the table; the updates of
/// `batches` are their copies for the operations, in the same order.
pub(crate) struct Work<T> {
    originals: Vec<Obj<T>>,
    batches: Batches<T>,
}

/// The outcome of an update.
enum Outcome {
    Done,
    Failed(Failure),
    Waits(Waiting),
    /// The object was written or deleted meanwhile: a later round reads that change.
    Superseded,
}

/// The result of an operation on an object.
enum Verdict {
    Done,
    Failed(String),
    Waits(Waiting),
}

impl From<OpResult> for Verdict {
    fn from(result: OpResult) -> Self {
        match result {
            Ok(()) => Verdict::Done,
            Err(error) => match error.downcast::<Waiting>() {
                Ok(waiting) => Verdict::Waits(*waiting),
                Err(error) => Verdict::Failed(error.to_string()),
            },
        }
    }
}

impl<T> Default for Work<T> {
    fn default() -> Self {
        let batches = Batches { deletes: Vec::new(), updates: Vec::new(), retry: false };
        Work { originals: Vec::new(), batches }
    }
}

impl<T: Clone> Work<T> {
    fn update(&mut self, object: Obj<T>) {
        self.batches.updates.push(BatchEntry::new((*object).clone(), object.revision()));
        self.originals.push(object);
    }

    fn len(&self) -> usize {
        self.batches.updates.len() + self.batches.deletes.len()
    }
}

impl<T: TableSpec + Clone> Core<T> {
    /// Reconciles changed objects, objects that no longer wait (their watch is in `woken` or their deadline has passed)
    /// and due retries. Changes and retries are at most `round_size` objects.
    pub(crate) async fn round(&mut self, woken: Vec<KeyBuf>) -> Round {
        let snapshot = self.table.snapshot();
        let errors = self.metrics.errors.value();
        self.floor = self.changes.seen() + 1;
        let (batch, more) = self.changes.read(&snapshot, self.round_size);
        let mut changed = !batch.is_empty();
        let mut work = self.work(false);
        for change in batch {
            if change.deleted {
                self.reset(&change.object);
                work.batches.deletes.push(BatchEntry::new(change.object, change.revision));
                continue;
            }
            match self.status.get(&change.object) {
                Ok(status) if status.is_pending() => {
                    self.reset(&change.object);
                    work.update(change.object);
                }
                Ok(_) => {}
                Err(error) => self.record_unreadable(&change.object, error),
            }
        }
        let woken: BTreeSet<KeyBuf> = woken.into_iter().chain(self.waits.overdue(Instant::now())).collect();
        for key in woken {
            // The batch above contained a change of the object, which cleared its wait.
            if !self.waits.contains(&key) {
                continue;
            }
            let current = self.table.get(&snapshot, Query::raw_primary(key.clone())).cloned();
            match current {
                Some(current) if self.status.get(&current).is_ok_and(|status| status.is_pending()) => {
                    work.update(current);
                }
                _ => drop(self.waits.clear(&key)),
            }
        }
        let done = self.reconcile(snapshot, work).await;

        let failing = self.retries.len();
        let due = self.retries.due(Instant::now(), self.round_size.saturating_sub(done));
        let mut retried = 0;
        if !due.is_empty() {
            // A new snapshot, in which the statuses that were committed above are visible.
            let snapshot = self.table.snapshot();
            let work = self.retry(&snapshot, due);
            retried = self.reconcile(snapshot, work).await;
        }
        changed |= self.retries.len() != failing;
        self.metrics.errors_current.set(self.retries.len());
        let failed = self.metrics.errors.value() > errors;
        Round { worked: done + retried > 0, failed, changed, more }
    }

    /// Returns an empty list of work.
    fn work(&mut self, retry: bool) -> Work<T> {
        let mut work = std::mem::take(&mut self.spare);
        work.batches.retry = retry;
        work
    }

    /// Clears the retry and the wait of an object that has changed or is reconciled.
    fn reset(&mut self, object: &T) {
        if self.retries.len() > 0 || !self.waits.is_empty() {
            let key = KeyBuf::of(&object.key());
            self.retries.clear(&key);
            self.waits.clear(&key);
        }
    }

    /// Records the failure of an object whose status cannot be read; the retry checks whether it is pending.
    fn record_unreadable(&mut self, object: &Obj<T>, error: String) {
        self.metrics.errors.add(1);
        let failure = Failure { error, recorded: false };
        self.retries.failed(KeyBuf::of(&object.key()), object.revision(), None, failure, Instant::now());
    }

    /// Returns the objects of the due keys in their current state.
    fn retry(&mut self, snapshot: &Snapshot, due: Vec<Due<T>>) -> Work<T> {
        let mut work = self.work(true);
        for Due { key, deleted, recorded } in due {
            let current = self.table.get(snapshot, Query::raw_primary(key.clone())).cloned();
            match (deleted, current) {
                (Some(deleted), None) => {
                    let revision = deleted.revision();
                    work.batches.deletes.push(BatchEntry::new(deleted, revision));
                }
                (None, Some(current)) => match self.status.get(&current) {
                    Ok(status) if status.kind() == StatusKind::Error => work.update(current),
                    Ok(status) if status.is_pending() && !recorded => work.update(current),
                    Ok(_) => drop(self.retries.clear(&key)),
                    Err(error) => self.record_unreadable(&current, error),
                },
                // The object was written or deleted since: the next round reads that change.
                _ => drop(self.retries.clear(&key)),
            }
        }
        work
    }

    /// Applies the objects to the target, then commits their statuses. Returns the number of objects.
    async fn reconcile(&mut self, snapshot: Snapshot, mut work: Work<T>) -> usize {
        let count = work.len();
        if count == 0 {
            self.spare = work;
            return 0;
        }
        self.metrics.objects.add(count);
        let target = self.take_target();
        // It drops the snapshot, so that the commit frees replaced rows at once.
        let (target, batches) = target.apply(self.blocking, snapshot, work.batches).await;
        (self.target, work.batches) = (Some(target), batches);
        self.deleted(&mut work.batches.deletes);
        if !work.originals.is_empty() {
            self.commit(&mut work);
        }
        self.spare = work;
        count
    }

    fn take_target(&mut self) -> Target<T> {
        let mut target = self.target.take().expect("one operation at a time");
        target.timed = Listener::listens(self.table.db());
        target
    }

    /// Clears the retries of deleted objects and enqueues those of failed deletes.
    fn deleted(&mut self, deletes: &mut Vec<BatchEntry<Obj<T>>>) {
        let now = Instant::now();
        for BatchEntry { object, revision, result } in deletes.drain(..) {
            match result {
                Ok(()) => self.reset(&object),
                Err(error) => {
                    self.metrics.errors.add(1);
                    let key = KeyBuf::of(&object.key());
                    let failure = Failure { error: error.to_string(), recorded: false };
                    self.retries.failed(key, revision, Some(object), failure, now);
                }
            }
        }
    }

    /// Writes the results into the objects in one transaction, whose writes are not read again as changes.
    fn commit(&mut self, work: &mut Work<T>) {
        let now = Instant::now();
        let wall = self.clock.at(now);
        let table = self.table.clone();
        let mut w = table.write();
        let before = w.revision();
        for (original, entry) in work.originals.drain(..).zip(work.batches.updates.drain(..)) {
            let BatchEntry { object, result, .. } = entry;
            let key = KeyBuf::of(&original.key());
            let verdict = Verdict::from(result);
            let failed = matches!(verdict, Verdict::Failed(_));
            let outcome = self.store(&mut w, &key, &original, object, verdict, wall);
            self.metrics.errors.add(usize::from(failed || matches!(outcome, Outcome::Failed(_))));
            match outcome {
                Outcome::Done | Outcome::Superseded => self.reset(&original),
                Outcome::Failed(failure) => {
                    // If others write the row too, its revision may be that of their status, later than the change that
                    // a caller waits for.
                    let revision = if self.shared { self.floor } else { original.revision() };
                    let revision = self.waits.clear(&key).unwrap_or(revision);
                    self.retries.failed(key, revision, None, failure, now);
                }
                Outcome::Waits(waiting) => {
                    self.retries.suspend(&key);
                    self.waits.add(key, original.revision(), waiting);
                }
            }
        }
        let written = before + 1..=w.revision();
        w.commit();
        // Own writes must not be read as changes. `leave_out` requires that there are no deletes among them.
        self.changes.leave_out(written);
    }

    /// Stores an object with its new status.
    ///
    /// An object that was written meanwhile gets the new status only if it still has the status that was reconciled:
    /// then the write has changed another field, such as another reconciler's status.
    ///
    /// If the result of the operation cannot be stored, because another row has its key in a unique index or because a
    /// closure panics, only the error is written into the row.
    fn store(
        &self,
        w: &mut statedb::Writer<'_, T>,
        key: &KeyBuf,
        original: &Obj<T>,
        reconciled: T,
        verdict: Verdict,
        wall: SystemTime,
    ) -> Outcome {
        let Some(current) = w.get(Query::raw_primary(key.clone())) else { return Outcome::Superseded };
        let (written, row, what, object);
        if current.same(original) {
            (row, what, object) = (original, "operation", Ok(reconciled));
        } else if self.same_status(current, original) {
            written = current.clone();
            (row, what, object) = (&written, "merge", self.merged(&written, &reconciled));
        } else {
            return Outcome::Superseded;
        }
        let stored = object.and_then(|object| {
            if KeyBuf::of(&object.key()) != *key {
                return Err(format!("{what} changed the primary key"));
            }
            let object = match &verdict {
                Verdict::Done => self.with_result(object, None, wall)?,
                Verdict::Failed(error) => self.with_result(object, Some(error), wall)?,
                Verdict::Waits(_) => self.pending(object)?,
            };
            w.try_insert(object).map_err(|conflict| conflict.to_string())
        });
        match (stored, verdict) {
            (Ok(_), Verdict::Done) => Outcome::Done,
            (Ok(_), Verdict::Failed(error)) => Outcome::Failed(Failure { error, recorded: true }),
            (Ok(_), Verdict::Waits(waiting)) => Outcome::Waits(waiting),
            (Err(refused), verdict) => {
                // The operation's own error is more specific than the refusal of its object.
                let error = if let Verdict::Failed(error) = verdict { error } else { refused };
                let failed = self.with_result((**row).clone(), Some(&error), wall);
                let recorded = failed.is_ok_and(|failed| w.try_insert(failed).is_ok());
                Outcome::Failed(Failure { error, recorded })
            }
        }
    }

    /// Whether both have the same status. False if one cannot be read: the next round reads the change that made it
    /// unreadable, and records the error.
    fn same_status(&self, a: &T, b: &T) -> bool {
        let ids =
            (self.status.get(a).map(|status| status.id()), self.status.get(b).map(|status| status.id()));
        matches!(ids, (Ok(a), Ok(b)) if a == b)
    }

    /// Returns a copy of the row with the fields that `merge` copies from the reconciled object.
    fn merged(&self, row: &T, reconciled: &T) -> Result<T, String> {
        let mut merged = row.clone();
        if let Some(merge) = &self.merge {
            guarded("merge", || merge(&mut merged, reconciled))?;
        }
        Ok(merged)
    }

    /// Returns the waiting object as pending, also if it has failed before.
    fn pending(&self, object: T) -> Result<T, String> {
        match self.status.get(&object)?.is_pending() {
            true => Ok(object),
            false => self.status.set(object, Status::pending()),
        }
    }

    fn with_result(&self, object: T, error: Option<&str>, wall: SystemTime) -> Result<T, String> {
        let status = match error {
            None => Status::new(StatusKind::Done, wall),
            Some(error) => Status::new(StatusKind::Error, wall).with_error(error),
        };
        self.status.set(object, status)
    }

    /// Returns the table's revision if all its initializers are done, and a watch that closes when they are.
    pub(crate) fn complete(&self) -> (Option<u64>, Watch) {
        let snapshot = self.table.snapshot();
        let (initialized, watch) = self.table.initialized_watch(&snapshot);
        (initialized.then(|| self.table.revision(&snapshot)), watch)
    }

    /// Removes objects from the target that are not in the table.
    pub(crate) async fn prune(&mut self) -> OpResult {
        let (table, snapshot) = (self.table.reader(), self.table.snapshot());
        let (target, result) = self.take_target().prune(self.blocking, snapshot, table).await;
        self.target = Some(target);
        result
    }

    pub(crate) fn progress(&self) -> Progress {
        let failing_since = self.retries.failing_since().into_iter().chain(self.waits.since()).min();
        Progress { attempted: self.changes.seen(), failing_since }
    }

    pub(crate) fn report(&self, prune_error: Option<&str>) -> Report {
        let failing = self.retries.len() + usize::from(prune_error.is_some());
        let objects = self.table.len(&self.table.snapshot());
        Report::new(objects, failing, prune_error.into_iter().chain(self.retries.errors()))
    }
}
