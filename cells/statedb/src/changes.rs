//! The stream of changes of a table.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::db::Snapshot;
use crate::obj::Obj;
use crate::spec::TableSpec;
use crate::table::Table;
use crate::watch::Watch;

/// So many seen deletes in the graveyard are worth a commit of their own; fewer wait for the next writer.
const GARBAGE: usize = 256;

/// What happened to one row, coalesced: only the latest state of each primary key.
#[derive(Clone, Debug)]
pub struct Change<T> {
    /// The row as it is now, or as it last was before its deletion.
    pub object: Obj<T>,
    /// The revision of the write or the delete.
    pub revision: u64,
    /// Whether the row is gone.
    pub deleted: bool,
}

/// Changes in order of their revisions.
#[derive(Clone, Debug)]
pub struct Batch<T>(Vec<Change<T>>);

impl<T> Batch<T> {
    /// The changes, oldest first.
    pub fn iter(&self) -> std::slice::Iter<'_, Change<T>> {
        self.0.iter()
    }

    /// How many changes there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing has changed.
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

/// An iterator over the committed changes of a table, from [`Table::changes`].
///
/// It begins with all rows there are, each once, and goes on with what changes. Several writes of one row between
/// two batches come as one change: an update if the row is there at the end, else a delete (also of a row that was
/// never seen). While the iterator lives, the table keeps deleted rows until it has seen them; drop it to let go.
pub struct Changes<T: TableSpec> {
    table: Table<T>,
    /// All changes up to this revision were given.
    seen: u64,
    tracker: Option<Arc<Tracker>>,
}

/// How far an iterator has come, for the graveyard.
pub(crate) struct Tracker(AtomicU64);

/// The iterators of a table.
#[derive(Default)]
pub struct Trackers(Vec<Weak<Tracker>>);

impl Trackers {
    /// The revision up to which all iterators have seen the deletes; none if there are no iterators.
    pub(crate) fn low_mark(&mut self) -> Option<u64> {
        let mut low = None;
        self.0.retain(|tracker| {
            let Some(tracker) = tracker.upgrade() else { return false };
            let mark = tracker.0.load(Ordering::Acquire);
            low = Some(low.map_or(mark, |low: u64| low.min(mark)));
            true
        });
        low
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().filter(|tracker| tracker.strong_count() > 0).count()
    }
}

impl<T: TableSpec> Changes<T> {
    pub(crate) fn new(table: Table<T>, from_now: bool) -> Self {
        let trackers = table.meta.trackers.clone();
        // No commit publishes while the trackers are locked: those before are in the snapshot, those after bury.
        let mut trackers = trackers.lock();
        let now = table.revision(&table.snapshot());
        let tracker = Arc::new(Tracker(AtomicU64::new(now)));
        trackers.0.push(Arc::downgrade(&tracker));
        Changes { table, seen: if from_now { now } else { 0 }, tracker: Some(tracker) }
    }

    /// Waits for changes and gives them all. Cancel safe: a change is given once or not yet.
    pub async fn next(&mut self) -> Batch<T> {
        loop {
            let watch = {
                let snapshot = self.table.snapshot();
                let (batch, watch) = self.take(&snapshot, usize::MAX);
                if !batch.is_empty() {
                    return batch;
                }
                watch
            };
            watch.changed().await;
        }
    }

    /// The changes there are now, without waiting.
    pub fn try_next(&mut self) -> Batch<T> {
        self.take(&self.table.snapshot(), usize::MAX).0
    }

    /// At most `limit` changes up to the snapshot, and a watch for more: closed already if the limit cut some off,
    /// else it closes with the next change after the snapshot.
    pub fn take(&mut self, snapshot: &Snapshot, limit: usize) -> (Batch<T>, Watch) {
        let Some(version) = self.table.meta.version(snapshot) else {
            return (Batch(Vec::new()), Watch::closed());
        };
        if version.revision <= self.seen {
            return (Batch(Vec::new()), version.watch.watch());
        }
        let from = self.seen + 1;
        let mut updates = version.by_revision(from).map(|object| (object.revision(), object)).peekable();
        let mut deletes = version.deletes(from).peekable();
        let mut batch = Vec::new();
        while batch.len() < limit {
            let update = updates.peek().map(|(revision, _)| *revision);
            let delete = deletes.peek().map(|(revision, _)| *revision);
            let deleted = match (update, delete) {
                (None, None) => break,
                (Some(update), Some(delete)) => delete < update,
                (update, _) => update.is_none(),
            };
            let next = if deleted { deletes.next() } else { updates.next() };
            batch.extend(next.map(|(revision, object)| Change { object: object.clone(), revision, deleted }));
        }
        let cut_off = updates.peek().is_some() || deletes.peek().is_some();
        self.seen =
            if cut_off { batch.last().map_or(self.seen, |last| last.revision) } else { version.revision };
        if let Some(tracker) = &self.tracker {
            tracker.0.fetch_max(self.seen, Ordering::AcqRel);
        }
        if version.graveyard.len() >= GARBAGE {
            self.table.collect_garbage();
        }
        (Batch(batch), if cut_off { Watch::closed() } else { version.watch.watch() })
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.table.snapshot()
    }

    /// The revision up to which all changes were given.
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

impl<T: TableSpec> Drop for Changes<T> {
    fn drop(&mut self) {
        self.tracker = None;
        let version = self.table.snapshot();
        if self.table.meta.version(&version).is_some_and(|version| !version.graveyard.is_empty()) {
            self.table.collect_garbage();
        }
    }
}
