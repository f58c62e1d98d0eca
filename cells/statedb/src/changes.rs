//! The stream of changes of a table.

pub(crate) mod trackers;

/// The synchronization primitives of the trackers; the models in `tests/loom` replace them by loom's.
mod sync {
    pub(super) use std::sync::Arc;
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
}

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};
use std::panic::Location;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use crate::db::Snapshot;
use crate::error::SinceError;
use crate::obj::Obj;
use crate::spec::TableSpec;
use crate::table::Table;
use crate::version::Version;
use crate::watch::{Changed, Watch};

/// The size of the graveyard from which a reader collects seen deletes even if its batch was cut off by the limit.
/// Below it the commit that this takes is deferred until the reader has caught up.
const GARBAGE: usize = 256;

/// The number of kept deleted rows from which the slowest reader is logged by name.
pub(crate) const MANY_KEPT: usize = 10_000;

/// A change of one row, coalesced: only the latest state of each primary key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Change<T> {
    /// The row as it is now, or as it last was before its deletion.
    pub object: Obj<T>,
    /// The revision of the write or the delete.
    pub revision: u64,
    /// Whether the row was deleted.
    pub deleted: bool,
}

/// Changes in order of their revisions.
#[derive(Clone, Debug)]
pub struct Batch<T>(Vec<Change<T>>);

impl<T> Batch<T> {
    /// Returns the changes, oldest first.
    pub fn iter(&self) -> std::slice::Iter<'_, Change<T>> {
        self.0.iter()
    }

    /// Returns the number of changes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> IntoIterator for Batch<T> {
    type Item = Change<T>;
    type IntoIter = std::vec::IntoIter<Change<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'b, T> IntoIterator for &'b Batch<T> {
    type Item = &'b Change<T>;
    type IntoIter = std::slice::Iter<'b, Change<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// The committed changes of a table, from [`Table::changes`]; a [`Stream`] of batches.
///
/// It begins with all existing rows, each once, and continues with later updates and deletes: in order of revision,
/// each exactly once. Several writes of one row between two batches are coalesced into one change: an update if the row
/// exists at the end, else a delete (even of a row that was never returned); a row that was deleted and inserted again
/// is an update. [`from_now`](Self::from_now) and [`since`](Self::since) skip changes that the caller already knows,
/// [`limit`](Self::limit) bounds the size of a batch.
///
/// While it exists, the table keeps deleted rows until it has read their deletes: keep reading, or drop it.
/// [`TableStats`](crate::TableStats) lists the readers, by name and source location, with the number of rows kept for
/// each; a reader for which ten thousand rows are kept is logged, once.
///
/// ```
/// # use futures::StreamExt;
/// # use statedb::{Db, Query, TableSpec};
/// # #[derive(Clone)] struct Backend { id: u32 }
/// # impl TableSpec for Backend {
/// #     const NAME: &'static str = "backends";
/// #     type Key<'a> = u32;
/// #     fn key(&self) -> u32 { self.id }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let backends = Db::new().table::<Backend>()?;
/// backends.transact(|w| (0..10).for_each(|id| drop(w.insert(Backend { id }))));
///
/// let mut changes = backends.changes().limit(6);
/// assert_eq!(changes.next().await.len(), 6);
/// let read = changes.seen(); // the revision of the sixth row
/// let mut others = backends.changes().since(read)?; // another reader continues from there
/// backends.transact(|w| w.delete(Query::primary(3)));
/// let batch = StreamExt::next(&mut others).await.expect("it never ends");
/// let read: Vec<_> = batch.iter().map(|change| (change.object.id, change.deleted)).collect();
/// assert_eq!(read, [(6, false), (7, false), (8, false), (9, false), (3, true)]);
/// # Ok(())
/// # }
/// ```
#[must_use = "while it exists, the table keeps deleted rows for it"]
pub struct Changes<T: TableSpec> {
    table: Table<T>,
    /// All changes up to this revision were returned or skipped.
    seen: u64,
    /// Deletes up to this revision are skipped: they are older than the reader, so it has never returned their rows.
    deletes_after: u64,
    /// Later revisions to skip, in order.
    skipped: VecDeque<RangeInclusive<u64>>,
    limit: usize,
    tracker: Arc<Tracker>,
    /// The pending watch of the [`Stream`].
    waiting: Option<Changed>,
}

/// The identification of a reader, for statistics and logs.
#[derive(Debug)]
pub struct Owner {
    place: &'static Location<'static>,
    name: OnceLock<Box<str>>,
    /// Whether it was logged.
    named: AtomicBool,
}

pub(crate) type Tracker = trackers::Tracker<Owner>;
pub(crate) type Trackers = trackers::Trackers<Owner>;

/// Statistics of one reader of changes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReaderStats {
    /// Its name ([`Changes::named`]), else its source location.
    pub owner: String,
    /// The source location of the call of [`Table::changes`].
    pub place: &'static Location<'static>,
    /// The revision up to which it has read.
    pub seen: u64,
    /// The number of deleted rows whose deletes it has not read yet.
    pub kept: usize,
}

impl Owner {
    pub(crate) fn name(&self) -> String {
        self.name.get().map_or_else(|| self.place.to_string(), |name| name.to_string())
    }

    /// Returns true on the first call only: the caller then logs it.
    pub(crate) fn first_time(&self) -> bool {
        !self.named.swap(true, std::sync::atomic::Ordering::Relaxed)
    }
}

impl<T: TableSpec> Changes<T> {
    #[track_caller]
    pub(crate) fn new(table: Table<T>) -> Self {
        let owner = Owner { place: Location::caller(), name: OnceLock::new(), named: AtomicBool::new(false) };
        let (now, tracker) = {
            // Commits hold this lock until their version is published: each delete after `now` finds the new tracker.
            let mut trackers = table.meta.trackers.lock();
            let now = table.revision(&table.snapshot());
            (now, trackers.register(now, owner))
        };
        Changes {
            table,
            seen: 0,
            deletes_after: now,
            skipped: VecDeque::new(),
            limit: usize::MAX,
            tracker,
            waiting: None,
        }
    }

    /// Names the reader in statistics and logs, which show for which reader deleted rows are kept. Only the first name
    /// takes effect.
    pub fn named(self, name: &str) -> Self {
        self.set_name(name);
        self
    }

    pub(crate) fn set_name(&self, name: &str) {
        let _named_already = self.tracker.owner.name.set(name.into());
    }

    /// Skips the existing rows: only changes after this call are returned.
    pub fn from_now(mut self) -> Self {
        let now = self.table.revision(&self.table.snapshot());
        (self.seen, self.deletes_after) = (now, now);
        self.tracker.advance(now);
        self
    }

    /// Skips all changes up to a revision: for a caller that has read the table up to there.
    ///
    /// # Errors
    /// If a delete after that revision is no longer kept, or the table has not reached the revision.
    pub fn since(mut self, revision: u64) -> Result<Self, SinceError> {
        {
            let trackers = self.table.meta.trackers.lock();
            let now = self.table.revision(&self.table.snapshot());
            let table = T::NAME;
            if revision > now {
                return Err(SinceError::Ahead { table, revision, now });
            }
            // A reader that starts from revision 0 knows no rows, so it needs no deletes.
            if revision > 0 {
                let rewound = trackers.rewind(&self.tracker, revision);
                rewound.map_err(|forgotten| SinceError::Forgotten { table, revision, forgotten })?;
                (self.seen, self.deletes_after) = (revision, revision);
            }
        }
        Ok(self)
    }

    /// Limits the number of changes in a batch; the minimum is one.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit.max(1);
        self
    }

    /// Waits for changes and returns all of them, up to the limit. Cancel safe: cancellation loses no change.
    pub async fn next(&mut self) -> Batch<T> {
        loop {
            let (batch, watch) = self.now();
            if !batch.is_empty() {
                return batch;
            }
            watch.changed().await;
        }
    }

    /// Returns the changes up to now, at most the limit, without waiting.
    pub fn try_next(&mut self) -> Batch<T> {
        self.now().0
    }

    fn now(&mut self) -> (Batch<T>, Watch) {
        self.read(&self.table.snapshot(), self.limit)
    }

    /// Returns at most `limit` changes up to the snapshot, and a watch for more: it is already closed if the limit cut
    /// some off, else it closes with the next change after the snapshot.
    pub fn read(&mut self, snapshot: &Snapshot, limit: usize) -> (Batch<T>, Watch) {
        let Some(version) = self.table.meta.version(snapshot) else {
            return (Batch(Vec::new()), Watch::closed());
        };
        if version.revision <= self.seen {
            return (Batch(Vec::new()), version.watch.watch());
        }
        let mut batch = Vec::new();
        let mut cut_off = false;
        while !cut_off && self.pass_skipped() < version.revision {
            let end = self.skipped.front().map_or(u64::MAX, |skipped| *skipped.start());
            cut_off = self.gather(version, self.seen + 1..end, limit, &mut batch);
            let upto = if cut_off {
                batch.last().map_or(0, |last| last.revision)
            } else {
                version.revision.min(end - 1)
            };
            self.seen = self.seen.max(upto);
        }
        self.tracker.advance(self.seen);
        if !cut_off || version.graveyard.len() >= GARBAGE {
            self.table.collect_seen(version);
        }
        (Batch(batch), if cut_off { Watch::closed() } else { version.watch.watch() })
    }

    /// Adds the changes of these revisions to a batch until it has `limit`; returns whether some were cut off.
    fn gather(
        &self,
        version: &Version<T>,
        revisions: Range<u64>,
        limit: usize,
        batch: &mut Vec<Change<T>>,
    ) -> bool {
        // Merges two sequences that are each sorted by revision: live rows and graves.
        let from = revisions.start;
        let mut updates = version.by_revision(from).map(|object| (object.revision(), object)).peekable();
        let mut deletes = version.deletes(from.max(self.deletes_after + 1)).peekable();
        loop {
            let update = updates.peek().map(|(revision, _)| *revision).filter(|at| *at < revisions.end);
            let delete = deletes.peek().map(|(revision, _)| *revision).filter(|at| *at < revisions.end);
            let deleted = match (update, delete) {
                (None, None) => return false,
                (Some(update), Some(delete)) => delete < update,
                (update, _) => update.is_none(),
            };
            if batch.len() >= limit {
                return true;
            }
            let next = if deleted { deletes.next() } else { updates.next() };
            batch.extend(next.map(|(revision, object)| Change { object: object.clone(), revision, deleted }));
        }
    }

    /// Skips the changes of these revisions: the caller's own writes (no deletes) in one transaction, from
    /// [`Writer::revision`](crate::Writer::revision) at its beginning, exclusive, to that at its end. For a caller that
    /// writes to the table whose changes it reads.
    pub fn leave_out(&mut self, written: RangeInclusive<u64>) {
        match self.skipped.back_mut() {
            Some(last) if *last.end() + 1 == *written.start() => *last = *last.start()..=*written.end(),
            _ if !written.is_empty() => self.skipped.push_back(written),
            _ => {}
        }
        let seen = self.pass_skipped();
        self.tracker.advance(seen);
    }

    /// Advances over skipped revisions; returns the revision up to which all changes were returned or skipped.
    fn pass_skipped(&mut self) -> u64 {
        while let Some(skipped) = self.skipped.front()
            && *skipped.start() <= self.seen + 1
        {
            self.seen = self.seen.max(*skipped.end());
            self.skipped.pop_front();
        }
        self.seen
    }

    #[cfg(feature = "untyped")]
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.table.snapshot()
    }

    /// Returns the revision up to which all changes were returned or skipped.
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

impl<T: TableSpec> Stream for Changes<T> {
    type Item = Batch<T>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Batch<T>>> {
        let changes = self.get_mut();
        loop {
            if let Some(waiting) = &mut changes.waiting {
                ready!(waiting.as_mut().poll(cx));
                changes.waiting = None;
            }
            let (batch, watch) = changes.now();
            if !batch.is_empty() {
                return Poll::Ready(Some(batch));
            }
            changes.waiting = Some(watch.into_changed());
        }
    }
}

impl<T: TableSpec> Drop for Changes<T> {
    fn drop(&mut self) {
        self.table.meta.trackers.lock().unregister(&self.tracker);
        if let Some(version) = self.table.meta.version(&self.table.snapshot()) {
            self.table.collect_seen(version);
        }
    }
}

impl<T: TableSpec> Table<T> {
    /// Removes deleted rows from the graveyard if there are some that all readers have seen.
    pub(crate) fn collect_seen(&self, version: &Version<T>) {
        if version.graveyard.is_empty() {
            return;
        }
        let first = version.deletes(0).next().map(|(revision, _)| revision);
        if first.is_some_and(|first| self.meta.trackers.lock().all_have_seen(first)) {
            self.collect_garbage();
        }
    }

    /// Returns the statistics of the readers of changes, with the number of rows that a version keeps for each.
    pub(crate) fn readers(trackers: &[Arc<Tracker>], version: Option<&Version<T>>) -> Vec<ReaderStats> {
        let mut readers: Vec<ReaderStats> = (trackers.iter())
            .map(|tracker| ReaderStats {
                owner: tracker.owner.name(),
                place: tracker.owner.place,
                seen: tracker.mark(),
                kept: 0,
            })
            .collect();
        // Sorted by mark: a delete is kept for the readers whose mark is less, a prefix of the list. Each delete is
        // counted at the last reader of its prefix; the loop below adds up from the end.
        readers.sort_by_key(|reader| reader.seen);
        let mut behind = 0;
        for (revision, _) in version.into_iter().flat_map(|version| version.deletes(0)) {
            while behind < readers.len() && readers[behind].seen < revision {
                behind += 1;
            }
            if let Some(last) = behind.checked_sub(1) {
                readers[last].kept += 1;
            }
        }
        let mut more = 0;
        for reader in readers.iter_mut().rev() {
            more += reader.kept;
            reader.kept = more;
        }
        readers
    }
}
