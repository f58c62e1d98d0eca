//! Reference-counted pointers for rows: one word smaller per row than `Arc`, which also has a weak count.

#![expect(unsafe_code, reason = "counted by hand")]

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use super::sync::{AtomicUsize, MAX_OWNERS, Ordering, too_many};

/// A reference-counted pointer without weak references.
pub(crate) struct Counted<V> {
    inner: NonNull<Inner<V>>,
    marker: PhantomData<Inner<V>>,
}

struct Inner<V> {
    count: AtomicUsize,
    value: V,
}

// JUSTIFICATION: shared between threads as an `Arc` is.
// SAFETY: owners only read the value (`Sync`), and the last owner drops it on its own thread (`Send`).
unsafe impl<V: Send + Sync> Send for Counted<V> {}
// SAFETY: as above.
unsafe impl<V: Send + Sync> Sync for Counted<V> {}

impl<V> Counted<V> {
    pub(crate) fn new(value: V) -> Self {
        let inner = NonNull::from(Box::leak(Box::new(Inner { count: AtomicUsize::new(1), value })));
        Counted { inner, marker: PhantomData }
    }

    /// Returns the address of the allocation, which is the same for all clones.
    pub(crate) fn addr(&self) -> usize {
        self.inner.addr().get()
    }

    fn inner(&self) -> &Inner<V> {
        // JUSTIFICATION: the allocation is shared by a count, not by a borrow.
        // SAFETY: the allocation is freed when the last pointer is dropped, and `self` is one that has not been.
        unsafe { self.inner.as_ref() }
    }
}

impl<V> Clone for Counted<V> {
    #[inline]
    fn clone(&self) -> Self {
        // Relaxed: the owner of the pointer that is cloned already has access to the value.
        if self.inner().count.fetch_add(1, Ordering::Relaxed) > MAX_OWNERS {
            too_many();
        }
        Counted { inner: self.inner, marker: PhantomData }
    }
}

impl<V> Drop for Counted<V> {
    #[inline]
    fn drop(&mut self) {
        // Acquire pairs with the Release decrements of other owners: their accesses happen before the drop. The last
        // owner does not need to decrement the count: no other pointer exists that could be cloned.
        if self.inner().count.load(Ordering::Acquire) != 1 {
            if self.inner().count.fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            self.inner().count.load(Ordering::Acquire);
        }
        // JUSTIFICATION: frees the box that `new` leaked.
        // SAFETY: the count was one before this drop, so no other pointer exists.
        drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
    }
}

impl<V> Deref for Counted<V> {
    type Target = V;

    #[inline(always)]
    fn deref(&self) -> &V {
        &self.inner().value
    }
}
