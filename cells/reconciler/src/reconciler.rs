//! The rounds: changes to operations to statuses.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::FutureExt;
use hive::JobCx;
use statedb::{Changes, KeyBuf, Obj, Query, RwTable, Snapshot, TableSpec, Watch};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::builder::{Clock, Merge, Options, StatusField};
use crate::metrics::Metrics;
use crate::ops::{BatchEntry, OpResult, Target};
use crate::progress::Progress;
use crate::retries::Retries;
use crate::status::{Status, StatusKind};

/// A reconciler that is ready to [`run`](Reconciler::run).
pub struct Reconciler<T: TableSpec> {
    pub(crate) core: Core<T>,
    pub(crate) name: Arc<str>,
    pub(crate) options: Options,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) prune: Arc<Notify>,
    pub(crate) report: Box<dyn FnMut(Report) + Send>,
    pub(crate) prune_error: Option<String>,
    /// The job that it is, for its watchdog.
    pub(crate) job: Option<JobCx>,
}

/// The state of a reconciler after a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Nothing fails: "OK, 12 object(s)".
    Ok(String),
    /// What fails: up to ten errors and how many more there are.
    Degraded(String),
}

pub(crate) struct Core<T: TableSpec> {
    pub(crate) table: RwTable<T>,
    pub(crate) changes: Changes<T>,
    pub(crate) status: StatusField<T>,
    pub(crate) merge: Option<Merge<T>>,
    /// Away while it works on a blocking thread.
    pub(crate) target: Option<Target<T>>,
    pub(crate) retries: Retries<T>,
    pub(crate) clock: Clock,
    pub(crate) round_size: usize,
    pub(crate) blocking: bool,
    pub(crate) shared: bool,
    /// The first revision of the round: what is pending in it became so here or later.
    pub(crate) floor: u64,
    pub(crate) metrics: Arc<Metrics>,
}

/// What a round leaves behind.
pub(crate) struct Round {
    /// Objects were reconciled.
    pub(crate) worked: bool,
    /// Closes when there is more to do.
    pub(crate) more: Watch,
}

/// Objects to update: as they are in the table, and copies for the operations.
struct Updates<T> {
    originals: Vec<Obj<T>>,
    entries: Vec<BatchEntry<T>>,
}

impl<T: Clone> Updates<T> {
    fn new() -> Self {
        Updates { originals: Vec::new(), entries: Vec::new() }
    }

    fn push(&mut self, object: &Obj<T>) {
        self.entries.push(BatchEntry::new((**object).clone(), object.revision()));
        self.originals.push(object.clone());
    }
}

impl<T: TableSpec + Clone> Core<T> {
    /// Works through the changes and the retries that are due, at most `round_size` objects.
    pub(crate) async fn round(&mut self) -> Round {
        let snapshot = self.table.snapshot();
        self.floor = self.changes.seen() + 1;
        let (batch, more) = self.changes.read(&snapshot, self.round_size);
        let (mut updates, mut deletes) = (Updates::new(), Vec::new());
        for change in batch {
            let key = KeyBuf::of(&change.object.key());
            if change.deleted {
                self.retries.clear(&key);
                deletes.push(BatchEntry::new(change.object, change.revision));
            } else if (self.status.get)(&change.object).is_pending() {
                self.retries.clear(&key);
                updates.push(&change.object);
            }
        }
        let done = self.reconcile(&snapshot, updates, deletes, false).await;

        let due = self.retries.due(Instant::now(), self.round_size.saturating_sub(done));
        let mut retried = 0;
        if !due.is_empty() {
            let snapshot = self.table.snapshot();
            let (updates, deletes) = self.retry(&snapshot, due);
            retried = self.reconcile(&snapshot, updates, deletes, true).await;
        }
        self.metrics.errors_current.set(self.retries.len());
        Round { worked: done + retried > 0, more }
    }

    /// The objects behind the keys that are due, as they are now.
    fn retry(
        &mut self,
        snapshot: &Snapshot,
        due: Vec<(KeyBuf, Option<Obj<T>>)>,
    ) -> (Updates<T>, Vec<BatchEntry<Obj<T>>>) {
        let (mut updates, mut deletes) = (Updates::new(), Vec::new());
        for (key, deleted) in due {
            let current = self.table.get(snapshot, Query::raw_primary(key.clone()));
            match (deleted, current) {
                (Some(deleted), None) => {
                    let revision = deleted.revision();
                    deletes.push(BatchEntry::new(deleted, revision));
                }
                (None, Some(current)) if (self.status.get)(current).kind == StatusKind::Error => {
                    updates.push(current);
                }
                // Written or deleted since: that is a change, which is tried on its own account.
                _ => drop(self.retries.clear(&key)),
            }
        }
        (updates, deletes)
    }

    /// Deletes, to make room, then updates, then commits the statuses. Gives the number of objects.
    async fn reconcile(
        &mut self,
        snapshot: &Snapshot,
        updates: Updates<T>,
        deletes: Vec<BatchEntry<Obj<T>>>,
        retry: bool,
    ) -> usize {
        let count = updates.entries.len() + deletes.len();
        self.metrics.count.add(count);
        if !deletes.is_empty() {
            let start = Instant::now();
            let deletes = self
                .on_target(snapshot, deletes, move |target, snapshot, batch| {
                    async move { target.delete(snapshot, batch, retry).await }.boxed()
                })
                .await;
            self.metrics.delete_time.add_time(start.elapsed());
            self.deleted(deletes);
        }
        if !updates.entries.is_empty() {
            let start = Instant::now();
            let entries = self
                .on_target(snapshot, updates.entries, move |target, snapshot, batch| {
                    async move { target.update(snapshot, batch, retry).await }.boxed()
                })
                .await;
            self.metrics.update_time.add_time(start.elapsed());
            self.commit(updates.originals, entries);
        }
        count
    }

    /// Runs an operation on the target, here or on a blocking thread.
    async fn on_target<A: Send + 'static>(
        &mut self,
        snapshot: &Snapshot,
        mut args: A,
        op: impl for<'t> FnOnce(&'t mut Target<T>, &'t Snapshot, &'t mut A) -> futures::future::BoxFuture<'t, ()>
        + Send
        + 'static,
    ) -> A {
        let mut target = self.target.take().expect("one operation at a time");
        let asynchronous = matches!(target, Target::Async(_));
        if self.blocking && !asynchronous {
            let snapshot = snapshot.clone();
            let work = move || {
                op(&mut target, &snapshot, &mut args).now_or_never();
                (target, args)
            };
            (target, args) = hive::blocking(work).await;
        } else {
            op(&mut target, snapshot, &mut args).await;
        }
        self.target = Some(target);
        args
    }

    fn deleted(&mut self, deletes: Vec<BatchEntry<Obj<T>>>) {
        let now = Instant::now();
        for BatchEntry { object, revision, result } in deletes {
            let key = KeyBuf::of(&object.key());
            match result {
                Ok(()) => drop(self.retries.clear(&key)),
                Err(error) => {
                    self.metrics.errors.add(1);
                    self.retries.failed(key, revision, Some(object), error.to_string(), now);
                }
            }
        }
    }

    /// Writes the results into the objects, in one transaction.
    ///
    /// An object that was written meanwhile gets the status only if the status it has is the one that was worked on:
    /// then the write was about something else, such as another reconciler's status. Otherwise it comes again.
    fn commit(&mut self, originals: Vec<Obj<T>>, entries: Vec<BatchEntry<T>>) {
        let now = Instant::now();
        let wall = self.clock.at(now);
        let mut w = self.table.write();
        for (original, BatchEntry { object: mut reconciled, result, .. }) in originals.iter().zip(entries) {
            let key = KeyBuf::of(&original.key());
            let error = match result {
                Ok(()) if KeyBuf::of(&reconciled.key()) != key => {
                    Some("operation changed the primary key".to_owned())
                }
                result => result.err().map(|error| error.to_string()),
            };
            let kind = if error.is_some() { StatusKind::Error } else { StatusKind::Done };
            let status = Status::new(kind, wall, error.as_deref().map(Into::into));
            let stored = match w.get(Query::of(&**original)).cloned() {
                Some(current) if current.same(original) => {
                    if KeyBuf::of(&reconciled.key()) != key {
                        reconciled = (**original).clone();
                    }
                    (self.status.set)(&mut reconciled, status);
                    w.try_insert(reconciled).is_ok()
                }
                Some(current) if (self.status.get)(&current).id == (self.status.get)(original).id => {
                    let mut current = (*current).clone();
                    if let Some(merge) = &self.merge {
                        merge(&mut current, &reconciled);
                    }
                    (self.status.set)(&mut current, status);
                    w.try_insert(current).is_ok()
                }
                _ => false,
            };
            match error {
                Some(error) => {
                    self.metrics.errors.add(1);
                    if stored {
                        let revision = if self.shared { self.floor } else { original.revision() };
                        self.retries.failed(key, revision, None, error, now);
                    } else {
                        self.retries.clear(&key);
                    }
                }
                None => drop(self.retries.clear(&key)),
            }
        }
        w.commit();
    }

    /// Removes from the target what the table does not have.
    pub(crate) async fn prune(&mut self) -> OpResult {
        let start = Instant::now();
        let (table, snapshot) = (self.table.reader(), self.table.snapshot());
        let result = self
            .on_target(&snapshot, Ok(()), move |target, snapshot, result| {
                async move {
                    let revision = table.revision(snapshot);
                    *result = target.prune(snapshot, revision, table.all(snapshot)).await;
                }
                .boxed()
            })
            .await;
        self.metrics.prunes.add(1);
        self.metrics.prune_errors.add(usize::from(result.is_err()));
        self.metrics.prune_time.add_time(start.elapsed());
        result
    }

    /// Marks at most `limit` objects that were reconciled longer than `age` ago, oldest first. Gives the wait until
    /// the next one is old enough, or zero if there are more.
    pub(crate) fn refresh(&mut self, age: Duration, limit: usize) -> Duration {
        let now = self.clock.at(Instant::now());
        let snapshot = self.table.snapshot();
        let old_at = |object: &T| {
            let status = (self.status.get)(object);
            // Whoever wrote a time to come had another clock: the system's has been set back since.
            let at = if status.updated_at > now { now } else { status.updated_at + age };
            status.is_done().then_some(at)
        };
        let mut due: Vec<Obj<T>> = Vec::new();
        let mut wait = age;
        for object in self.table.by_revision(&snapshot, 0) {
            match old_at(object) {
                Some(at) if at <= now && due.len() == limit => {
                    wait = Duration::ZERO;
                    break;
                }
                Some(at) if at <= now => due.push(object.clone()),
                Some(at) => {
                    wait = at.duration_since(now).unwrap_or_default();
                    break;
                }
                None => {}
            }
        }
        if !due.is_empty() {
            self.mark_refreshing(&due, now);
        }
        wait
    }

    fn mark_refreshing(&self, objects: &[Obj<T>], now: SystemTime) {
        let mut w = self.table.write();
        for object in objects {
            let mut refreshed = (**object).clone();
            (self.status.set)(&mut refreshed, Status::new(StatusKind::Refreshing, now, None));
            // An object that was written meanwhile is fresh enough.
            let _ = w.compare_and_swap(object.revision(), refreshed);
        }
        w.commit();
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress { attempted: self.changes.seen(), failing_since: self.retries.failing_since() }
    }

    /// "OK, N object(s)", or the first ten errors.
    pub(crate) fn report(&self, prune_error: Option<&str>) -> Report {
        const SHOWN: usize = 10;
        let failing = self.retries.len() + usize::from(prune_error.is_some());
        if failing == 0 {
            return Report::Ok(format!("OK, {} object(s)", self.table.len(&self.table.snapshot())));
        }
        let errors: Vec<&str> = prune_error.into_iter().chain(self.retries.errors()).take(SHOWN).collect();
        let omitted = failing - errors.len();
        let more = if omitted > 0 { format!("; {omitted} further errors omitted") } else { String::new() };
        Report::Degraded(format!("{}{more}", errors.join("; ")))
    }
}
