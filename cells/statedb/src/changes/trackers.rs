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
#[derive(Debug)]
pub(crate) struct Tracker<O> {
    mark: AtomicU64,
    pub(crate) owner: O,
}

/// The readers of a table, behind its lock.
#[derive(Debug)]
pub struct Trackers<O> {
    all: Vec<Arc<Tracker<O>>>,
    /// The revision of the newest delete that is no longer kept.
    forgotten: u64,
}

/// The deletes of the version that a commit publishes.
pub(crate) trait Graves {
    /// Keeps the deletes of the commit's own transaction.
    fn bury(&mut self);

    /// Returns the revision of the newest delete of the commit's own transaction.
    fn newest(&self) -> Option<u64>;

    /// Removes kept deletes up to a revision; returns the revision of the newest of them.
    fn forget(&mut self, upto: u64) -> Option<u64>;
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

    /// Keeps the deletes of a commit for the readers that have not seen them, and removes those that all have seen. The
    /// caller keeps the trackers locked until the version is published.
    pub(crate) fn keep(&mut self, graves: &mut impl Graves) {
        let forgotten = match self.slowest().map(|slowest| slowest.mark()) {
            Some(mark) => {
                graves.bury();
                graves.forget(mark)
            }
            None => graves.forget(u64::MAX).max(graves.newest()),
        };
        self.forgotten = self.forgotten.max(forgotten.unwrap_or(0));
    }

    /// Whether all readers have seen the delete of a revision; true if there are no readers.
    pub(crate) fn all_have_seen(&self, delete: u64) -> bool {
        self.slowest().is_none_or(|slowest| delete <= slowest.mark())
    }

    /// Moves a reader back to a revision.
    ///
    /// # Errors
    /// The revision of the newest delete that is no longer kept, if it is later.
    pub(crate) fn rewind(&self, tracker: &Tracker<O>, revision: u64) -> Result<(), u64> {
        if self.forgotten > revision {
            return Err(self.forgotten);
        }
        tracker.mark.fetch_min(revision, Ordering::AcqRel);
        Ok(())
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
}
