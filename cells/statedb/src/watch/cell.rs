//! A lock-free cell from which readers request a watch and in which a writer closes it.

#![expect(unsafe_code, reason = "a pointer that is made when first asked for")]

use std::marker::PhantomData;

use super::sync::{Arc, AtomicPtr, Ordering};

/// A pointer that is null, the shared state of the watches, or a mark that the cell was closed without one.
///
/// The first request and the close both compare-and-swap from null, so exactly one wins: either the state is stored
/// before the close, which then closes it, or the close comes first and the request returns none.
pub(crate) struct LazyCell<S> {
    state: AtomicPtr<S>,
    marker: PhantomData<Arc<S>>,
}

const fn closed<S>() -> *mut S {
    std::ptr::without_provenance_mut(1)
}

impl<S> LazyCell<S> {
    /// Returns the state, created by `make` on the first request; none if the cell was closed without one.
    pub(crate) fn get(&self, make: impl FnOnce() -> Arc<S>) -> Option<Arc<S>> {
        let mut state = self.state.load(Ordering::Acquire);
        if state.is_null() {
            const { assert!(align_of::<S>() > 1) };
            let new = Arc::into_raw(make()).cast_mut();
            // Release publishes the new state to other readers; Acquire makes the state of the winner visible.
            state = match self.state.compare_exchange(state, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => new,
                Err(other) => {
                    // JUSTIFICATION: another reader or the close won the race; the new state is dropped.
                    // SAFETY: the pointer is from `into_raw` above and was not stored, so this is its only owner.
                    drop(unsafe { Arc::from_raw(new) });
                    other
                }
            };
        }
        if state == closed() {
            return None;
        }
        // JUSTIFICATION: the cell keeps one count, the caller gets one.
        // SAFETY: neither null nor the mark, so the pointer is from `into_raw`. The cell owns one count until `take`,
        // by `drop` at the latest; both need exclusive access, and `self` is borrowed here.
        unsafe {
            Arc::increment_strong_count(state);
            Some(Arc::from_raw(state))
        }
    }

    /// Passes the state to `close`, if there is one; otherwise marks the cell, so that later requests return none.
    pub(crate) fn close(&self, close: impl FnOnce(&S)) {
        let empty = std::ptr::null_mut();
        match self.state.compare_exchange(empty, closed(), Ordering::AcqRel, Ordering::Acquire) {
            Err(state) if state != closed() => {
                // JUSTIFICATION: the state stays in the cell, since a reader that has loaded the pointer may be about
                // to increment its count.
                // SAFETY: neither null nor the mark, so the pointer is from `into_raw`, and the cell owns one count
                // until `take`, which needs exclusive access, while `self` is borrowed here.
                close(unsafe { &*state });
            }
            _ => {}
        }
    }

    /// Takes the state out of a cell that is about to be dropped.
    pub(crate) fn take(&mut self) -> Option<Arc<S>> {
        // No compare-and-swap needed: access is exclusive.
        let state = self.state.load(Ordering::Acquire);
        if state.is_null() || state == closed() {
            return None;
        }
        self.state.store(closed(), Ordering::Relaxed);
        // JUSTIFICATION: transfers the cell's count to the caller.
        // SAFETY: neither null nor the mark, so the pointer is from `into_raw`. Access is exclusive, and the mark that
        // was stored above prevents a second transfer.
        Some(unsafe { Arc::from_raw(state) })
    }
}

impl<S> Default for LazyCell<S> {
    fn default() -> Self {
        LazyCell { state: AtomicPtr::new(std::ptr::null_mut()), marker: PhantomData }
    }
}

impl<S> Drop for LazyCell<S> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
