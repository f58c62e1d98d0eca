//! Counted pointers for rows: a word less each than those of the standard library, which also count weak ones.

#![expect(unsafe_code, reason = "counted by hand")]

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use super::sync::{AtomicUsize, MAX_OWNERS, Ordering, too_many};

/// A value that is dropped with the last pointer to it.
pub(crate) struct Counted<V> {
    inner: NonNull<Inner<V>>,
    marker: PhantomData<Inner<V>>,
}

struct Inner<V> {
    count: AtomicUsize,
    value: V,
}

// JUSTIFICATION: a pointer that is shared, as an `Arc` is.
// SAFETY: all who have it read the value, and the last one, on whichever thread, drops it.
unsafe impl<V: Send + Sync> Send for Counted<V> {}
// SAFETY: as above.
unsafe impl<V: Send + Sync> Sync for Counted<V> {}

impl<V> Counted<V> {
    pub(crate) fn new(value: V) -> Self {
        let inner = NonNull::from(Box::leak(Box::new(Inner { count: AtomicUsize::new(1), value })));
        Counted { inner, marker: PhantomData }
    }

    /// Where the value is; the same for all pointers to it.
    pub(crate) fn addr(&self) -> usize {
        self.inner.addr().get()
    }

    fn inner(&self) -> &Inner<V> {
        // JUSTIFICATION: a pointer whose end is counted.
        // SAFETY: freed by the last pointer, which this is or which comes later.
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
        // Acquire: accesses by other owners are ordered before the drop. The last owner need not decrement the count:
        // there is no other pointer that could be cloned.
        if self.inner().count.load(Ordering::Acquire) != 1 {
            if self.inner().count.fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            self.inner().count.load(Ordering::Acquire);
        }
        // JUSTIFICATION: the end of what `new` has made.
        // SAFETY: the count was one, so there is no other pointer.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_last_one_drops_the_value_on_whichever_thread() {
        let value = Arc::new(());
        let first = Counted::new(value.clone());
        assert_eq!(size_of_val(&first), size_of::<usize>());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let mine = first.clone();
                assert_eq!(mine.addr(), first.addr());
                scope.spawn(move || (0..1000).for_each(|_| drop(mine.clone())));
            }
        });
        assert_eq!(Arc::strong_count(&value), 2);
        drop(first);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
