//! The roots and the counted pointers, compiled with loom's primitives.

pub(crate) mod sync {
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

    pub(crate) const MAX_OWNERS: usize = 16;

    pub(crate) fn too_many() -> ! {
        panic!("too many owners")
    }

    pub(crate) struct Mutex<V>(loom::sync::Mutex<V>);

    impl<V> Mutex<V> {
        pub(crate) fn new(value: V) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, V> {
            self.0.lock().unwrap()
        }
    }

    pub(crate) struct Guarded<V>(loom::cell::UnsafeCell<V>);

    impl<V> Guarded<V> {
        pub(crate) fn new(value: V) -> Self {
            Guarded(loom::cell::UnsafeCell::new(value))
        }

        pub(crate) fn read<R>(&self, f: impl FnOnce(*const V) -> R) -> R {
            self.0.with(f)
        }

        pub(crate) fn write<R>(&self, f: impl FnOnce(*mut V) -> R) -> R {
            self.0.with_mut(f)
        }
    }
}

#[path = "../../src/engine/roots.rs"]
#[expect(dead_code, reason = "the models list no previous roots")]
pub(crate) mod roots;

#[path = "../../src/engine/counted.rs"]
pub(crate) mod counted;
