//! Memory that a transaction has allocated and retired, by birth.

#![expect(unsafe_code, reason = "memory is freed when the last version that can reach it is gone")]

use std::cell::Cell;

use super::roots::Garbage;
use crate::panics::Panics;

/// A transaction's work on the trees of one table.
pub(crate) struct Edit {
    /// The birth of all nodes and leaves that this transaction allocates; see the module's documentation.
    birth: u64,
    retired: Vec<Retired>,
}

/// A type-erased allocation that no future version can reach, with its drop function.
pub(crate) struct Retired {
    what: *mut (),
    birth: u64,
    fate: &'static Fate,
}

/// The drop function of a retired allocation.
pub(crate) struct Fate {
    /// Frees its memory.
    pub(crate) free: unsafe fn(*mut ()),
    /// Closes its watch.
    pub(crate) close: unsafe fn(*mut ()),
}

// JUSTIFICATION: pointers to things of erased types; only what is `Send` and `Sync` is retired, see `Retired::new`.
// SAFETY: a `Retired` is the only way to free what it points at, which may happen on any thread.
unsafe impl Send for Retired {}
// SAFETY: all that a shared reference can do is to close watches, which are made for several threads.
unsafe impl Sync for Retired {}

thread_local! {
    /// An empty list with spare capacity, reused because lists of large transactions grow to sizes whose release makes
    /// allocators consolidate free memory.
    static SPARE: Cell<Vec<Retired>> = const { Cell::new(Vec::new()) };
}

/// The maximum capacity, in entries, of the list that a thread keeps.
const MAX_SPARE_CAPACITY: usize = 2048;

/// Keeps an empty list for the next transaction of this thread.
pub(crate) fn keep_list(list: Vec<Retired>) {
    if list.is_empty() && list.capacity() <= MAX_SPARE_CAPACITY {
        // Fails while the thread exits; the list is then dropped.
        let _ = SPARE.try_with(|spare| spare.set(list));
    }
}

impl Edit {
    pub(crate) fn new(birth: u64) -> Self {
        Edit { birth, retired: SPARE.try_with(Cell::take).unwrap_or_default() }
    }

    pub(crate) fn birth(&self) -> u64 {
        self.birth
    }

    pub(crate) fn retire(&mut self, retired: Retired) {
        self.retired.push(retired);
    }

    /// Closes the watches of all retired nodes and leaves.
    pub(crate) fn close_watches(&self, panics: &mut Panics) {
        // JUSTIFICATION: one list holds things of several types.
        // SAFETY: what is on the list has not been freed, and the function is the one of its type.
        panics.each(&self.retired, |retired| unsafe { (retired.fate.close)(retired.what) });
    }

    /// Takes the list, to be attached to the root that can still reach its entries.
    pub(crate) fn take_retired(&mut self) -> Vec<Retired> {
        std::mem::take(&mut self.retired)
    }

    /// Frees what this transaction has both allocated and retired; the other entries stay in use by the published
    /// version. Called after the transaction's trees are gone.
    pub(crate) fn abandon(&mut self) {
        let mut list = std::mem::take(&mut self.retired);
        let mut panics = Panics::default();
        panics.each(list.drain(..).filter(|retired| retired.birth == self.birth), |retired| {
            // JUSTIFICATION: an aborted transaction leaves nothing behind.
            // SAFETY: of this birth, so it was reachable only from this transaction's trees, and these no longer exist.
            unsafe { retired.free() }
        });
        keep_list(list);
        panics.resume();
    }
}

impl Retired {
    /// # Safety
    /// `what` is `Send` and `Sync`, has this birth and fate, and is retired once. No version that is published from
    /// now on reaches it.
    pub(crate) unsafe fn new(what: *mut (), birth: u64, fate: &'static Fate) -> Self {
        Retired { what, birth, fate }
    }
}

impl Garbage for Retired {
    fn birth(&self) -> u64 {
        self.birth
    }

    unsafe fn free(self) {
        // JUSTIFICATION: the end of manual memory management.
        // SAFETY: the caller knows that it is unreachable; the function is the one of its type.
        unsafe { (self.fate.free)(self.what) }
    }
}
