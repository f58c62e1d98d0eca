//! The readers of a table's changes: how far each has come, what must be kept for them.
//!
//! A commit holds the lock of the trackers from its look at them until its state is published, and a reader takes the
//! state it begins from under the same lock: a delete is either in the state that the reader begins from, or is kept for
//! it. Who lets go of deletes that all have seen (a commit, or the reader that was the last) holds the table's lock; one
//! that does not get it leaves the work to the writer who has it, who looks once more after giving it back.

use super::sync::{Arc, AtomicU64, Ordering};

/// How far a reader has come.
pub(crate) struct Tracker<O> {
    mark: AtomicU64,
    pub(crate) owner: O,
}

/// The readers of a table, behind its lock.
pub struct Trackers<O> {
    all: Vec<Arc<Tracker<O>>>,
    /// The newest delete that is not known any more.
    forgotten: u64,
}

impl<O> Trackers<O> {
    pub(crate) fn new() -> Self {
        Trackers { all: Vec::new(), forgotten: 0 }
    }

    /// Begins to keep the deletes after a revision.
    pub(crate) fn register(&mut self, mark: u64, owner: O) -> Arc<Tracker<O>> {
        let tracker = Arc::new(Tracker { mark: AtomicU64::new(mark), owner });
        self.all.push(tracker.clone());
        tracker
    }

    pub(crate) fn unregister(&mut self, tracker: &Arc<Tracker<O>>) {
        self.all.retain(|other| !Arc::ptr_eq(other, tracker));
    }

    /// The reader that has come less far than the others.
    pub(crate) fn slowest(&self) -> Option<&Arc<Tracker<O>>> {
        self.all.iter().min_by_key(|tracker| tracker.mark())
    }

    /// The revision up to which all have seen the deletes: no limit if there is no reader.
    pub(crate) fn low_mark(&self) -> u64 {
        self.slowest().map_or(u64::MAX, |tracker| tracker.mark())
    }

    /// Notes that the delete of this revision, and those before it, are not kept any more.
    pub(crate) fn forget(&mut self, revision: u64) {
        self.forgotten = self.forgotten.max(revision);
    }

    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    pub(crate) fn all(&self) -> &[Arc<Tracker<O>>] {
        &self.all
    }
}

impl<O> Tracker<O> {
    pub(crate) fn mark(&self) -> u64 {
        self.mark.load(Ordering::Acquire)
    }

    /// All deletes up to the revision were seen.
    pub(crate) fn advance(&self, revision: u64) {
        self.mark.fetch_max(revision, Ordering::AcqRel);
    }

    /// Goes back to where deletes are still kept, under the lock.
    pub(crate) fn rewind(&self, revision: u64) {
        self.mark.fetch_min(revision, Ordering::AcqRel);
    }
}
