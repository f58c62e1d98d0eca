//! Typed handles on maps: keys and values are plain structs of the datapath's ABI.
#![expect(unsafe_code, reason = "structs are seen as bytes")]

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use datapath_abi::Pod;

use crate::error::{Error, Result};
use crate::raw_map::{RawMap, UpdateMode, possible_cpus};
use crate::spec::MapSpec;

/// Returns the bytes of plain values.
pub fn bytes_of<T: Pod>(values: &[T]) -> &[u8] {
    // JUSTIFICATION: the kernel copies keys and values as bytes.
    // SAFETY: Pod types have no padding, so all bytes are initialised; the slice borrows `values`.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Parses consecutive values; a remainder shorter than a value is ignored.
pub fn values_of<T: Pod>(bytes: &[u8]) -> Vec<T> {
    let read = |chunk: &[u8]| {
        // JUSTIFICATION: the kernel returns values as bytes.
        // SAFETY: `chunks_exact` yields slices of the size of T; T is Pod, so any bytes are a valid T; the read is
        // unaligned.
        unsafe { chunk.as_ptr().cast::<T>().read_unaligned() }
    };
    bytes.chunks_exact(size_of::<T>()).map(read).collect()
}

/// A map with one value per key, shared by all CPUs: hash, LRU hash, array, longest prefix match.
pub struct Map<K, V> {
    raw: RawMap,
    types: PhantomData<fn(K) -> V>,
}

impl<K: Pod, V: Pod> Map<K, V> {
    /// Creates a typed handle on a map, if the sizes match.
    pub fn new(raw: RawMap) -> Result<Map<K, V>> {
        check_sizes::<K, V>(&raw)?;
        if raw.layout().map_type.is_per_cpu() {
            return Err(Error::HandleType { name: raw.name().to_owned(), found: raw.layout().map_type });
        }
        Ok(Map { raw, types: PhantomData })
    }

    /// Creates an unpinned map.
    pub fn create(spec: &MapSpec) -> Result<Map<K, V>> {
        Map::new(RawMap::create(spec)?)
    }

    /// Opens a pinned map.
    pub fn open(path: &Path) -> Result<Map<K, V>> {
        Map::new(RawMap::open(path)?)
    }

    /// Returns the map without its types.
    pub fn raw(&self) -> &RawMap {
        &self.raw
    }

    /// Pins the map.
    pub fn pin(&self, path: &Path) -> Result<()> {
        self.raw.pin(path)
    }

    /// Returns another handle on the same map.
    pub fn try_clone(&self) -> Result<Map<K, V>> {
        Ok(Map { raw: self.raw.try_clone()?, types: PhantomData })
    }

    /// Returns the value of a key.
    pub fn lookup(&self, key: &K) -> Result<Option<V>> {
        let mut value = vec![0; self.raw.value_len()];
        let found = self.raw.lookup(bytes_of(std::slice::from_ref(key)), &mut value)?;
        Ok(if found { values_of(&value).pop() } else { None })
    }

    /// Creates or replaces an entry.
    pub fn update(&self, key: &K, value: &V) -> Result<()> {
        self.update_mode(key, value, UpdateMode::Any)
    }

    /// Creates or replaces an entry, under the condition of `mode`.
    pub fn update_mode(&self, key: &K, value: &V, mode: UpdateMode) -> Result<()> {
        let (key, value) = (std::slice::from_ref(key), std::slice::from_ref(value));
        self.raw.update(bytes_of(key), bytes_of(value), mode)
    }

    /// Deletes an entry; false if there was none.
    pub fn delete(&self, key: &K) -> Result<bool> {
        self.raw.delete(bytes_of(std::slice::from_ref(key)))
    }

    /// Creates or replaces many entries in one system call.
    pub fn update_batch(&self, rows: &[(K, V)]) -> Result<()> {
        let keys: Vec<K> = rows.iter().map(|(k, _)| *k).collect();
        let values: Vec<V> = rows.iter().map(|(_, v)| *v).collect();
        self.raw.update_batch(bytes_of(&keys), bytes_of(&values))
    }

    /// Deletes many entries in one system call; missing ones are no error.
    pub fn delete_batch(&self, keys: &[K]) -> Result<()> {
        self.raw.delete_batch(bytes_of(keys))
    }

    /// Returns all entries, in the kernel's order.
    pub fn entries(&self) -> Result<Vec<(K, V)>> {
        let (keys, values) = self.raw.entries()?;
        Ok(values_of(&keys).into_iter().zip(values_of(&values)).collect())
    }

    /// Calls `visit` for each entry, in the kernel's order, without collecting them.
    pub fn visit(&self, mut visit: impl FnMut(K, V)) -> Result<()> {
        self.raw.scan(|keys, values| {
            let values = values.chunks_exact(size_of::<V>());
            let rows = keys.chunks_exact(size_of::<K>()).zip(values);
            rows.filter_map(|(k, v)| Some((K::from_bytes(k)?, V::from_bytes(v)?)))
                .for_each(|(k, v)| visit(k, v));
        })
    }

    /// Returns the entries for which `keep` is true: for a large map of which few entries are needed.
    pub fn filter(&self, mut keep: impl FnMut(&K, &V) -> bool) -> Result<Vec<(K, V)>> {
        let mut kept = Vec::new();
        self.visit(|k, v| {
            if keep(&k, &v) {
                kept.push((k, v));
            }
        })?;
        Ok(kept)
    }

    /// Returns all keys.
    pub fn keys(&self) -> Result<Vec<K>> {
        Ok(values_of(&self.raw.entries()?.0))
    }

    /// Deletes everything.
    pub fn clear(&self) -> Result<()> {
        // Most maps to be cleared are empty already: this saves a scan.
        if self.raw.is_empty()? { Ok(()) } else { self.delete_batch(&self.keys()?) }
    }
}

impl<K, V> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

impl<K, V> AsFd for Map<K, V> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.as_fd()
    }
}

/// A map with a value for each possible CPU.
pub struct PerCpuMap<K, V> {
    raw: RawMap,
    types: PhantomData<fn(K) -> V>,
}

impl<K: Pod, V: Pod> PerCpuMap<K, V> {
    /// Creates a typed handle on a map, if it is per-CPU and the sizes match.
    pub fn new(raw: RawMap) -> Result<PerCpuMap<K, V>> {
        check_sizes::<K, V>(&raw)?;
        if !raw.layout().map_type.is_per_cpu() {
            return Err(Error::HandleType { name: raw.name().to_owned(), found: raw.layout().map_type });
        }
        Ok(PerCpuMap { raw, types: PhantomData })
    }

    /// Opens a pinned map.
    pub fn open(path: &Path) -> Result<PerCpuMap<K, V>> {
        PerCpuMap::new(RawMap::open(path)?)
    }

    /// Returns the map without its types.
    pub fn raw(&self) -> &RawMap {
        &self.raw
    }

    /// Returns the values of a key, one for each CPU.
    pub fn lookup(&self, key: &K) -> Result<Option<Vec<V>>> {
        let mut bytes = vec![0; self.raw.value_len()];
        let found = self.raw.lookup(bytes_of(std::slice::from_ref(key)), &mut bytes)?;
        Ok(found.then(|| split_cpus(&bytes)))
    }

    /// Writes the values of all CPUs.
    ///
    /// # Panics
    /// If there are not as many values as possible CPUs.
    pub fn update(&self, key: &K, values: &[V]) -> Result<()> {
        assert_eq!(values.len(), possible_cpus(), "values of map {}", self.raw.name());
        let mut bytes = Vec::with_capacity(self.raw.value_len());
        for value in values {
            bytes.extend_from_slice(bytes_of(std::slice::from_ref(value)));
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        self.raw.update(bytes_of(std::slice::from_ref(key)), &bytes, UpdateMode::Any)
    }

    /// Deletes an entry; false if there was none.
    pub fn delete(&self, key: &K) -> Result<bool> {
        self.raw.delete(bytes_of(std::slice::from_ref(key)))
    }

    /// Returns all entries with one value for each CPU.
    pub fn entries(&self) -> Result<Vec<(K, Vec<V>)>> {
        let (keys, values) = self.raw.entries()?;
        Ok(values_of(&keys)
            .into_iter()
            .zip(values.chunks_exact(self.raw.value_len()).map(split_cpus))
            .collect())
    }
}

impl<K, V> fmt::Debug for PerCpuMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

impl<K, V> AsFd for PerCpuMap<K, V> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.as_fd()
    }
}

/// A map with kernel objects as values: programs for tail calls, or maps.
#[derive(Debug)]
pub struct ObjectMap {
    raw: RawMap,
}

impl ObjectMap {
    /// Creates a handle on a program array, an array of maps or a hash of maps with 4-byte keys.
    pub fn new(raw: RawMap) -> Result<ObjectMap> {
        check_sizes::<u32, u32>(&raw)?;
        if !raw.layout().map_type.holds_objects() {
            return Err(Error::HandleType { name: raw.name().to_owned(), found: raw.layout().map_type });
        }
        Ok(ObjectMap { raw })
    }

    /// Opens a pinned map.
    pub fn open(path: &Path) -> Result<ObjectMap> {
        ObjectMap::new(RawMap::open(path)?)
    }

    /// Returns the map without its type.
    pub fn raw(&self) -> &RawMap {
        &self.raw
    }

    /// Writes an object into a slot. In maps of maps this waits for a grace period (8 ms): prefer
    /// [`ObjectMap::set_batch`].
    pub fn set(&self, slot: u32, object: &impl AsFd) -> Result<()> {
        let fd = object.as_fd().as_raw_fd() as u32;
        self.raw.update(&slot.to_ne_bytes(), &fd.to_ne_bytes(), UpdateMode::Any)
    }

    /// Writes many objects into slots; maps of maps wait for a single grace period (8 to 11 ms).
    pub fn set_batch<'a>(&self, objects: impl IntoIterator<Item = (u32, BorrowedFd<'a>)>) -> Result<()> {
        let (slots, fds): (Vec<u32>, Vec<u32>) =
            objects.into_iter().map(|(slot, fd)| (slot, fd.as_raw_fd() as u32)).unzip();
        self.raw.update_batch(bytes_of(&slots), bytes_of(&fds))
    }

    /// Empties a slot; false if it was empty.
    pub fn unset(&self, slot: u32) -> Result<bool> {
        self.raw.delete(&slot.to_ne_bytes())
    }

    /// Returns the kernel's id of the map or program in a slot. Some kernels cannot look up program arrays:
    /// `EOPNOTSUPP`.
    pub fn id(&self, slot: u32) -> Result<Option<u32>> {
        let mut id = [0; 4];
        Ok(self.raw.lookup(&slot.to_ne_bytes(), &mut id)?.then(|| u32::from_ne_bytes(id)))
    }
}

impl AsFd for ObjectMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.as_fd()
    }
}

fn split_cpus<V: Pod>(bytes: &[u8]) -> Vec<V> {
    bytes
        .chunks_exact(size_of::<V>().next_multiple_of(8))
        .flat_map(|cpu| values_of(&cpu[..size_of::<V>()]))
        .collect()
}

fn check_sizes<K, V>(raw: &RawMap) -> Result<()> {
    let layout = raw.layout();
    if layout.key_size as usize == size_of::<K>() && layout.value_size as usize == size_of::<V>() {
        return Ok(());
    }
    Err(Error::HandleSize {
        name: raw.name().to_owned(),
        found_key: layout.key_size,
        found_value: layout.value_size,
        key: size_of::<K>(),
        value: size_of::<V>(),
    })
}
