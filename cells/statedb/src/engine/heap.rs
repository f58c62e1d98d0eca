//! Allocations that a transaction retires, and how they are freed.

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
    ptr: *mut (),
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

// JUSTIFICATION: type-erased raw pointers are neither `Send` nor `Sync`.
// SAFETY: `Retired::new` requires a `Send` and `Sync` pointee, and a `Retired` is the only handle that frees it.
unsafe impl Send for Retired {}
// SAFETY: through a shared reference only watches can be closed, which are `Sync`.
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
        // JUSTIFICATION: one list holds allocations of several types.
        // SAFETY: entries of the list have not been freed, and `Retired::new` requires that `fate` matches the type.
        panics.each(&self.retired, |retired| unsafe { (retired.fate.close)(retired.ptr) });
    }

    /// Takes the list. The caller attaches it to the last root that reaches its entries.
    pub(crate) fn take_retired(&mut self) -> Vec<Retired> {
        std::mem::take(&mut self.retired)
    }

    /// Frees the entries that this transaction allocated itself; the others are still in use by the published version.
    /// Called after the transaction's trees are gone.
    pub(crate) fn abandon(&mut self) {
        let mut list = std::mem::take(&mut self.retired);
        let mut panics = Panics::default();
        panics.each(list.drain(..).filter(|retired| retired.birth == self.birth), |retired| {
            // JUSTIFICATION: an aborted transaction must not leak its allocations.
            // SAFETY: entries of this birth were reachable only from this transaction's trees, which no longer exist.
            unsafe { retired.free() }
        });
        keep_list(list);
        panics.resume();
    }
}

impl Retired {
    /// # Safety
    /// `ptr` is `Send` and `Sync`, has this birth and fate, and is retired once. No version that is published from
    /// now on reaches it.
    pub(crate) unsafe fn new(ptr: *mut (), birth: u64, fate: &'static Fate) -> Self {
        Retired { ptr, birth, fate }
    }
}

impl Garbage for Retired {
    fn birth(&self) -> u64 {
        self.birth
    }

    unsafe fn free(self) {
        // JUSTIFICATION: frees a type-erased allocation.
        // SAFETY: by the contract of `Garbage::free` it is unreachable; by that of `Retired::new` the function is the
        // one of its type.
        unsafe { (self.fate.free)(self.ptr) }
    }
}
