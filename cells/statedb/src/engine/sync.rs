//! Synchronization primitives of the engine. The models in `tests/loom` compile `roots.rs` with loom's
//! definitions of the same names.

pub(super) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

pub(super) use parking_lot::Mutex;

/// The maximum of a reference count. Half of the range, as in `Arc`: threads that exceed it at the same time still
/// reach [`too_many`] before the count wraps around, which would free an allocation that is in use.
pub(super) const MAX_OWNERS: usize = isize::MAX as usize;

/// Aborts the process: a reference count beyond [`MAX_OWNERS`] can only be a leak.
#[cold]
pub(super) fn too_many() -> ! {
    std::process::abort()
}

/// A cell that the surrounding protocol synchronizes; loom checks its accesses.
pub(super) struct Guarded<V>(std::cell::UnsafeCell<V>);

impl<V> Guarded<V> {
    pub(super) fn new(value: V) -> Self {
        Guarded(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with the pointer, for reading. The caller dereferences it only while the protocol allows reads.
    pub(super) fn read<R>(&self, f: impl FnOnce(*const V) -> R) -> R {
        f(self.0.get())
    }

    /// Calls `f` with the pointer, for writing. The caller dereferences it only while it has exclusive access.
    pub(super) fn write<R>(&self, f: impl FnOnce(*mut V) -> R) -> R {
        f(self.0.get())
    }
}
