//! What a transaction has made and put out of use, by birth.

#![expect(unsafe_code, reason = "memory is freed when the last version that can reach it is gone")]

use std::cell::Cell;

use super::roots::Garbage;
use crate::panics::Panics;

/// A transaction's work on the trees of one table.
pub(crate) struct Edit {
    /// What this transaction makes carries this number; see the module's documentation.
    birth: u64,
    retired: Vec<Retired>,
}

/// Something that no version to come can reach, and what its end is.
pub(crate) struct Retired {
    what: *mut (),
    birth: u64,
    fate: &'static Fate,
}

/// The drop function of a retired allocation.
pub(crate) struct Fate {
    /// Gives its memory back.
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
    /// An empty list with room. Lists of large transactions grow to sizes at which allocators tidy up when they go.
    static SPARE: Cell<Vec<Retired>> = const { Cell::new(Vec::new()) };
}

/// So many things have room in the list that a thread keeps.
const SPARE_ROOM: usize = 2048;

/// Keeps an empty list for the next transaction of this thread.
pub(crate) fn keep_list(list: Vec<Retired>) {
    if list.is_empty() && list.capacity() <= SPARE_ROOM {
        // A thread that ends keeps nothing.
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

    /// Closes the watches of all that is out of use.
    pub(crate) fn close_watches(&self, panics: &mut Panics) {
        // JUSTIFICATION: one list holds things of several types.
        // SAFETY: what is on the list has not been freed, and the function is the one of its type.
        panics.each(&self.retired, |retired| unsafe { (retired.fate.close)(retired.what) });
    }

    /// The list, for the root that can still reach what is on it.
    pub(crate) fn take_retired(&mut self) -> Vec<Retired> {
        std::mem::take(&mut self.retired)
    }

    /// Frees what this transaction has both made and put out of use, after its trees are gone; the rest stays in use.
    pub(crate) fn abandon(&mut self) {
        let mut list = std::mem::take(&mut self.retired);
        let mut panics = Panics::default();
        panics.each(list.drain(..).filter(|retired| retired.birth == self.birth), |retired| {
            // JUSTIFICATION: an aborted transaction leaves nothing behind.
            // SAFETY: nobody but this transaction could reach it, and its trees do not any more.
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
