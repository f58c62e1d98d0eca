//! Map definitions as BTF describes them: the loader reads type, sizes and flags from the types of these fields.

use aya_ebpf::helpers::{bpf_map_lookup_elem, bpf_map_update_elem};
use core::ffi::c_void;

/// A map with key `K`, value `V`, type `T`, `N` entries at the most and flags `F`.
#[repr(C)]
pub(crate) struct Map<K, V, const T: usize, const N: usize, const F: usize> {
    r#type: *const [i32; T],
    key: *const K,
    value: *const V,
    max_entries: *const [i32; N],
    map_flags: *const [i32; F],
}

// SAFETY: the fields are never read; the kernel replaces the address of the whole by a map.
unsafe impl<K, V, const T: usize, const N: usize, const F: usize> Sync for Map<K, V, T, N, F> {}

impl<K, V, const T: usize, const N: usize, const F: usize> Map<K, V, T, N, F> {
    pub(crate) const fn new() -> Self {
        Self {
            r#type: core::ptr::null(),
            key: core::ptr::null(),
            value: core::ptr::null(),
            max_entries: core::ptr::null(),
            map_flags: core::ptr::null(),
        }
    }

    #[inline(always)]
    pub(crate) fn handle(&self) -> *mut c_void {
        (&raw const *self).cast_mut().cast()
    }

    /// The row of a key.
    #[inline(always)]
    pub(crate) fn get(&self, key: &K) -> Option<&'static V> {
        // SAFETY: the kernel returns null or a pointer to a value of this map, which outlives the program's run.
        unsafe { bpf_map_lookup_elem(self.handle(), (&raw const *key).cast()).cast::<V>().as_ref() }
    }

    /// The row of a key, to change it; only for maps whose rows belong to one CPU.
    #[inline(always)]
    pub(crate) fn get_mut(&self, key: &K) -> Option<&'static mut V> {
        // SAFETY: as `get`; nobody else runs on this CPU meanwhile that holds the same row.
        unsafe { bpf_map_lookup_elem(self.handle(), (&raw const *key).cast()).cast::<V>().as_mut() }
    }

    /// Writes a row; a full map is not an error that anybody could treat.
    #[inline(always)]
    pub(crate) fn insert(&self, key: &K, value: &V) {
        // SAFETY: key and value are live for the call and of the map's types.
        unsafe {
            bpf_map_update_elem(self.handle(), (&raw const *key).cast(), (&raw const *value).cast(), 0)
        };
    }
}

/// Map types and flags (linux/bpf.h).
pub(crate) const HASH: usize = 1;
pub(crate) const ARRAY: usize = 2;
pub(crate) const PROG_ARRAY: usize = 3;
pub(crate) const PERF_EVENT_ARRAY: usize = 4;
pub(crate) const PERCPU_HASH: usize = 5;
pub(crate) const LPM_TRIE: usize = 11;
pub(crate) const NO_PREALLOC: usize = 1;
pub(crate) const RDONLY_PROG: usize = 0x80;
