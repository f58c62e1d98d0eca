//! Map definitions as BTF describes them: the loader reads type, sizes and flags from the types of these fields.

use aya_ebpf::helpers::{bpf_map_delete_elem, bpf_map_lookup_elem, bpf_map_update_elem};
use core::ffi::c_void;
use core::marker::PhantomData;

/// A map with key `K`, value `V`, type `T`, capacity `N` and flags `F`.
#[repr(C)]
pub(crate) struct Map<K, V, const T: usize, const N: usize, const F: usize> {
    r#type: *const [i32; T],
    key: *const K,
    value: *const V,
    max_entries: *const [i32; N],
    map_flags: *const [i32; F],
}

// SAFETY: the fields are never read; the loader replaces the static's address by a map.
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

    /// Returns a handle without the map's type, size and flags.
    #[inline(always)]
    pub(crate) fn rows(&self) -> Rows<K, V> {
        Rows(self.handle(), PhantomData)
    }

    /// Returns the entry of a key.
    #[inline(always)]
    pub(crate) fn get(&self, key: &K) -> Option<&'static V> {
        // SAFETY: the kernel returns null or a pointer to a value of this map, which outlives the program's run.
        unsafe { self.rows().pointer(key).as_ref() }
    }

    /// Returns the entry of a key for modification; only for per-CPU maps.
    #[inline(always)]
    pub(crate) fn get_mut(&self, key: &K) -> Option<&'static mut V> {
        // SAFETY: as in `get`; the entry is this CPU's, and no program that uses it preempts this one.
        unsafe { self.rows().pointer(key).as_mut() }
    }

    /// Writes an entry; a full map is ignored, as a program cannot free entries.
    #[inline(always)]
    pub(crate) fn insert(&self, key: &K, value: &V) {
        let _ = self.rows().insert(key, value);
    }
}

/// A handle on the entries of a map, independent of its type.
pub(crate) struct Rows<K, V>(*mut c_void, PhantomData<(K, V)>);

impl<K, V> Rows<K, V> {
    /// Returns a pointer to the entry of a key, or null. Other CPUs may change the entry.
    #[inline(always)]
    pub(crate) fn pointer(&self, key: &K) -> *mut V {
        // SAFETY: the handle is that of a map, the key outlives the call and has the map's key type.
        unsafe { bpf_map_lookup_elem(self.0, (&raw const *key).cast()).cast() }
    }

    /// Writes an entry; the error is a negative errno.
    #[inline(always)]
    pub(crate) fn insert(&self, key: &K, value: &V) -> Result<(), i8> {
        self.insert_with(key, value, ANY)
    }

    /// Writes an entry that does not exist; the error is a negative errno.
    #[inline(always)]
    pub(crate) fn insert_new(&self, key: &K, value: &V) -> Result<(), i8> {
        self.insert_with(key, value, NOEXIST)
    }

    #[inline(always)]
    fn insert_with(&self, key: &K, value: &V, flags: u64) -> Result<(), i8> {
        // SAFETY: as above, and the value outlives the call and has the map's value type.
        let answer = unsafe {
            bpf_map_update_elem(self.0, (&raw const *key).cast(), (&raw const *value).cast(), flags)
        };
        if answer == 0 { Ok(()) } else { Err(answer as i8) }
    }

    /// Removes an entry, if there is one.
    #[inline(always)]
    pub(crate) fn remove(&self, key: &K) {
        // SAFETY: as above.
        unsafe { bpf_map_delete_elem(self.0, (&raw const *key).cast()) };
    }
}

/// An array of up to `N` maps of type `I`.
#[repr(C)]
pub(crate) struct ArrayOfMaps<I, const N: usize> {
    r#type: *const [i32; ARRAY_OF_MAPS],
    key: *const u32,
    value: *const u32,
    max_entries: *const [i32; N],
    map_flags: *const [i32; 0],
    values: [*const I; 0],
}

// SAFETY: as for `Map`.
unsafe impl<I, const N: usize> Sync for ArrayOfMaps<I, N> {}

impl<I, const N: usize> ArrayOfMaps<I, N> {
    pub(crate) const fn new() -> Self {
        Self {
            r#type: core::ptr::null(),
            key: core::ptr::null(),
            value: core::ptr::null(),
            max_entries: core::ptr::null(),
            map_flags: core::ptr::null(),
            values: [],
        }
    }
}

impl<K, V, const T: usize, const S: usize, const F: usize, const N: usize>
    ArrayOfMaps<Map<K, V, T, S, F>, N>
{
    /// Returns the map in a slot.
    #[inline(always)]
    pub(crate) fn get(&self, slot: u32) -> Option<Rows<K, V>> {
        let outer = (&raw const *self).cast_mut().cast();
        // SAFETY: the key outlives the call; the kernel returns null or a map of the declared type.
        let inner = unsafe { bpf_map_lookup_elem(outer, (&raw const slot).cast()) };
        if inner.is_null() { None } else { Some(Rows(inner, PhantomData)) }
    }
}

/// Up to `N` maps of type `I` by keys `K`.
#[repr(C)]
pub(crate) struct HashOfMaps<K, I, const N: usize, const F: usize> {
    r#type: *const [i32; HASH_OF_MAPS],
    key: *const K,
    value: *const u32,
    max_entries: *const [i32; N],
    map_flags: *const [i32; F],
    values: [*const I; 0],
}

// SAFETY: as for `Map`.
unsafe impl<K, I, const N: usize, const F: usize> Sync for HashOfMaps<K, I, N, F> {}

impl<K, I, const N: usize, const F: usize> HashOfMaps<K, I, N, F> {
    pub(crate) const fn new() -> Self {
        Self {
            r#type: core::ptr::null(),
            key: core::ptr::null(),
            value: core::ptr::null(),
            max_entries: core::ptr::null(),
            map_flags: core::ptr::null(),
            values: [],
        }
    }
}

impl<O, K, V, const T: usize, const S: usize, const G: usize, const N: usize, const F: usize>
    HashOfMaps<O, Map<K, V, T, S, G>, N, F>
{
    /// Returns the map of a key.
    #[inline(always)]
    pub(crate) fn get(&self, key: &O) -> Option<Rows<K, V>> {
        let outer = (&raw const *self).cast_mut().cast();
        // SAFETY: the key outlives the call; the kernel returns null or a map of the declared type.
        let inner = unsafe { bpf_map_lookup_elem(outer, (&raw const *key).cast()) };
        if inner.is_null() { None } else { Some(Rows(inner, PhantomData)) }
    }
}

/// Flags of updates (linux/bpf.h).
const ANY: u64 = 0;
const NOEXIST: u64 = 1;

/// Map types and flags (linux/bpf.h).
pub(crate) const HASH: usize = 1;
pub(crate) const ARRAY: usize = 2;
pub(crate) const PROG_ARRAY: usize = 3;
pub(crate) const PERF_EVENT_ARRAY: usize = 4;
pub(crate) const PERCPU_HASH: usize = 5;
pub(crate) const PERCPU_ARRAY: usize = 6;
pub(crate) const LRU_HASH: usize = 9;
pub(crate) const LRU_PERCPU_HASH: usize = 10;
pub(crate) const LPM_TRIE: usize = 11;
pub(crate) const ARRAY_OF_MAPS: usize = 12;
pub(crate) const HASH_OF_MAPS: usize = 13;
pub(crate) const NO_PREALLOC: usize = 1;
pub(crate) const NO_COMMON_LRU: usize = 2;
pub(crate) const RDONLY_PROG: usize = 0x80;
