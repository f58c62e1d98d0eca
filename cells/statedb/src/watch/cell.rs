//! The place where a reader asks for a watch and a writer closes it, without a lock.

#![expect(unsafe_code, reason = "a pointer that is made when first asked for")]

use std::marker::PhantomData;

use super::sync::{Arc, AtomicPtr, Ordering};

/// Holds nothing, the watch of those who have asked, or the mark that it is too late to ask.
///
/// Asking and closing meet in one compare-and-swap from nothing: either the reader's watch is there before the close
/// and gets closed, or the close came first and the reader is told so.
pub(crate) struct LazyCell<S> {
    state: AtomicPtr<S>,
    marker: PhantomData<Arc<S>>,
}

const fn closed<S>() -> *mut S {
    std::ptr::without_provenance_mut(1)
}

impl<S> LazyCell<S> {
    /// The watch, made by `make` if nothing has asked before; none if it has closed without one.
    pub(crate) fn get(&self, make: impl FnOnce() -> Arc<S>) -> Option<Arc<S>> {
        let mut state = self.state.load(Ordering::Acquire);
        if state.is_null() {
            const { assert!(align_of::<S>() > 1) };
            let new = Arc::into_raw(make()).cast_mut();
            state = match self.state.compare_exchange(state, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => new,
                Err(other) => {
                    // JUSTIFICATION: somebody was faster.
                    // SAFETY: from `into_raw` above, and not stored.
                    drop(unsafe { Arc::from_raw(new) });
                    other
                }
            };
        }
        if state == closed() {
            return None;
        }
        // JUSTIFICATION: the cell keeps one count, the caller gets one.
        // SAFETY: from `into_raw`, and counted by the cell until it is dropped, which is not while it is borrowed.
        unsafe {
            Arc::increment_strong_count(state);
            Some(Arc::from_raw(state))
        }
    }

    /// Closes what those who have asked wait for, by `close`; who asks later is told that it is too late.
    pub(crate) fn close(&self, close: impl FnOnce(&S)) {
        let nobody = std::ptr::null_mut();
        match self.state.compare_exchange(nobody, closed(), Ordering::AcqRel, Ordering::Acquire) {
            Err(state) if state != closed() => {
                // JUSTIFICATION: the state stays where it is, since a reader may be about to count it.
                // SAFETY: counted by the cell until it is dropped.
                close(unsafe { &*state });
            }
            _ => {}
        }
    }

    /// The state, of a cell that is about to be dropped.
    pub(crate) fn take(&mut self) -> Option<Arc<S>> {
        // Plain steps: nothing else has the cell.
        let state = self.state.load(Ordering::Acquire);
        if state.is_null() || state == closed() {
            return None;
        }
        self.state.store(closed(), Ordering::Relaxed);
        // JUSTIFICATION: gives the cell's count up.
        // SAFETY: from `into_raw`, and nothing else can look at the cell.
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
