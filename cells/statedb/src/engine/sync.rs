//! Primitives of the protocols between threads. The models in `tests/loom` compile `roots.rs` with
//! other definitions of the same names.

pub(super) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

pub(super) use parking_lot::Mutex;

/// The most owners that something counts. Half of what a count can be: threads that are past it at the same time still
/// come to [`too_many`] before it wraps around, which would free what is in use.
pub(super) const MAX_OWNERS: usize = isize::MAX as usize;

/// Ends the process: so many owners can only have been leaked.
#[cold]
pub(super) fn too_many() -> ! {
    std::process::abort()
}

/// Memory that the protocol around it guards.
pub(super) struct Guarded<V>(std::cell::UnsafeCell<V>);

impl<V> Guarded<V> {
    pub(super) fn new(value: V) -> Self {
        Guarded(std::cell::UnsafeCell::new(value))
    }

    /// For reading, by dereferencing while the protocol allows it.
    pub(super) fn read<R>(&self, f: impl FnOnce(*const V) -> R) -> R {
        f(self.0.get())
    }

    /// For writing.
    pub(super) fn write<R>(&self, f: impl FnOnce(*mut V) -> R) -> R {
        f(self.0.get())
    }
}
