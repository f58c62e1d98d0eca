//! The readers of a table's changes: the revision that each has read up to, and the deletes that must be kept for them.
//!
//! A commit holds the lock of the trackers from reading them until its state is published, and a reader takes its
//! initial state under the same lock: a delete is either part of the reader's initial state, or is kept for it.
//!
//! Deletes that all readers have seen are removed by a commit or by the last reader to see them, under the table's
//! lock. A reader that does not get the lock leaves the removal to the writer that holds it: each writer checks again
//! after it has released the lock.

use super::sync::{Arc, AtomicU64, Ordering};

/// The progress of a reader.
pub(crate) struct Tracker<O> {
    mark: AtomicU64,
    pub(crate) owner: O,
}

/// The readers of a table, behind its lock.
pub struct Trackers<O> {
    all: Vec<Arc<Tracker<O>>>,
    /// The revision of the newest delete that is no longer kept.
    forgotten: u64,
}

impl<O> Trackers<O> {
    pub(crate) fn new() -> Self {
        Trackers { all: Vec::new(), forgotten: 0 }
    }

    /// Adds a reader, for which deletes after a revision are kept.
    pub(crate) fn register(&mut self, mark: u64, owner: O) -> Arc<Tracker<O>> {
        let tracker = Arc::new(Tracker { mark: AtomicU64::new(mark), owner });
        self.all.push(tracker.clone());
        tracker
    }

    pub(crate) fn unregister(&mut self, tracker: &Arc<Tracker<O>>) {
        self.all.retain(|other| !Arc::ptr_eq(other, tracker));
    }

    /// Returns the reader with the lowest mark.
    pub(crate) fn slowest(&self) -> Option<&Arc<Tracker<O>>> {
        self.all.iter().min_by_key(|tracker| tracker.mark())
    }

    /// Returns the revision up to which all readers have seen the deletes; `u64::MAX` if there are no readers.
    pub(crate) fn low_mark(&self) -> u64 {
        self.slowest().map_or(u64::MAX, |tracker| tracker.mark())
    }

    /// Records that deletes up to this revision are no longer kept.
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

    /// Records that all deletes up to the revision were seen.
    pub(crate) fn advance(&self, revision: u64) {
        self.mark.fetch_max(revision, Ordering::AcqRel);
    }

    /// Moves the mark back to a revision. The caller holds the lock of the trackers and has checked that all deletes
    /// after the revision are still kept.
    pub(crate) fn rewind(&self, revision: u64) {
        self.mark.fetch_min(revision, Ordering::AcqRel);
    }
}
