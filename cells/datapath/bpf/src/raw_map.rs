//! A map of any layout: keys and values are bytes, lengths are checked against the kernel's sizes.
#![expect(unsafe_code, reason = "map commands take pointers to keys and values")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::spec::{Layout, MapFlags, MapSpec, MapType};
use crate::sys::{self, BatchAttr, Command, ElementAttr, FdAttr, MapCreateAttr, RawMapInfo};

/// The kernel-internal `ENOTSUPP`, which some map types return for batch commands.
const ENOTSUPP: i32 = 524;

/// The condition of an update on the existence of its key (`BPF_ANY`, `BPF_NOEXIST`, `BPF_EXIST`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateMode {
    /// Create or replace.
    #[default]
    Any,
    /// Create only; an existing key is an error.
    Create,
    /// Replace only; a missing key is an error.
    Replace,
}

/// The kernel's information about a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapInfo {
    /// The kernel's id of the map.
    pub id: u32,
    /// The kernel's name: the first 15 bytes of the full one.
    pub name: String,
    /// Returns type, sizes and flags.
    pub layout: Layout,
}

/// A map without static types for key and value. Cheap to duplicate by [`RawMap::try_clone`].
#[derive(Debug)]
pub struct RawMap {
    fd: OwnedFd,
    id: u32,
    name: String,
    layout: Layout,
    /// Bytes of a value in system calls: per-CPU maps have one, rounded up to 8, for each possible CPU.
    value_len: usize,
    observer: Option<Arc<dyn WriteObserver>>,
}

/// An observer of writes through a handle and its clones, called after each system call. It must not write the map
/// itself.
pub trait WriteObserver: std::fmt::Debug + Send + Sync {
    /// Called after an attempt to create or replace an entry.
    fn updated(&self, key: &[u8], value: &[u8], result: &Result<()>);

    /// Called after an attempt to delete an entry.
    fn deleted(&self, key: &[u8], result: &Result<()>);
}

impl RawMap {
    /// Creates an unpinned map.
    pub fn create(spec: &MapSpec) -> Result<RawMap> {
        let inner = match spec.inner {
            Some(layout) => Some(RawMap::create(&MapSpec {
                name: format!("{}_inner", spec.name).into(),
                layout,
                inner: None,
            })?),
            None => None,
        };
        RawMap::create_with_inner(spec, inner.as_ref())
    }

    /// Creates an unpinned map of maps with inner maps of the layout of `inner`; the spec's own inner layout is
    /// ignored.
    pub fn create_with_inner(spec: &MapSpec, inner: Option<&RawMap>) -> Result<RawMap> {
        let Layout { map_type, key_size, value_size, max_entries, flags } = spec.layout;
        let max_entries = match (map_type, max_entries) {
            (MapType::PerfEventArray, 0) => possible_cpus() as u32,
            (_, n) => n,
        };
        let mut attr = MapCreateAttr {
            map_type: map_type.number(),
            key_size,
            value_size,
            max_entries,
            map_flags: flags.0,
            inner_map_fd: inner.map_or(0, |map| map.fd.as_raw_fd() as u32),
            name: sys::kernel_name(&spec.name),
            ..MapCreateAttr::default()
        };
        let fd = sys::plain_fd(Command::MapCreate, &mut attr).map_err(|source| {
            Error::syscall("create map", format!("{} ({})", spec.name, spec.layout), source)
        })?;
        RawMap::from_fd(fd, &spec.name)
    }

    /// Opens a pinned map, whatever its layout.
    pub fn open(path: &Path) -> Result<RawMap> {
        let fd = sys::open_pin(path)
            .map_err(|source| Error::syscall("open pinned map", path.display().to_string(), source))?;
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        RawMap::from_fd(fd, &name)
    }

    /// Opens the map with that kernel id. Needs `CAP_SYS_ADMIN`.
    pub fn open_id(id: u32) -> Result<RawMap> {
        let fd = sys::fd_by_id(Command::MapFdById, id)
            .map_err(|source| Error::syscall("open map number", id.to_string(), source))?;
        let mut map = RawMap::from_fd(fd, "")?;
        map.name = map.info()?.name;
        Ok(map)
    }

    fn from_fd(fd: OwnedFd, name: &str) -> Result<RawMap> {
        let info: RawMapInfo = sys::info(fd.as_fd()).map_err(|e| Error::syscall("ask about map", name, e))?;
        let layout = layout_of(&info);
        let value_len = match layout.map_type.is_per_cpu() {
            true => (layout.value_size as usize).next_multiple_of(8) * possible_cpus(),
            false => layout.value_size as usize,
        };
        Ok(RawMap { fd, id: info.id, name: name.to_owned(), layout, value_len, observer: None })
    }

    /// Returns the handle with an observer of its writes.
    pub fn observed_by(self, observer: Arc<dyn WriteObserver>) -> RawMap {
        RawMap { observer: Some(observer), ..self }
    }

    /// Returns the full name of the creation, or the pin's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the kernel's id of the map.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns type, sizes and flags.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the size of a value of [`RawMap::lookup`] in bytes. In per-CPU maps it holds the values of all CPUs,
    /// each rounded up to 8 bytes.
    pub fn value_len(&self) -> usize {
        self.value_len
    }

    /// Returns the kernel's information about it.
    pub fn info(&self) -> Result<MapInfo> {
        let raw: RawMapInfo = sys::info(self.fd.as_fd()).map_err(|e| self.error("ask about map", e))?;
        Ok(MapInfo { id: raw.id, name: sys::name_text(&raw.name), layout: layout_of(&raw) })
    }

    /// Returns the kernel memory of the map in bytes, from `/proc/self/fdinfo`.
    pub fn memory(&self) -> Result<u64> {
        crate::usage::memory(self.fd.as_fd())
    }

    /// Returns another handle on the same map.
    pub fn try_clone(&self) -> Result<RawMap> {
        let fd = self.fd.try_clone().map_err(|e| self.error("duplicate map", e))?;
        let (name, observer) = (self.name.clone(), self.observer.clone());
        Ok(RawMap { fd, name, observer, ..*self })
    }

    /// Pins the map; an existing pin is an error.
    pub fn pin(&self, path: &Path) -> Result<()> {
        sys::pin(self.fd.as_fd(), path)
            .map_err(|source| Error::syscall("pin map", path.display().to_string(), source))
    }

    /// Makes the map permanently read-only for system calls. The verifier then treats its values as constants.
    pub fn freeze(&self) -> Result<()> {
        let mut attr = FdAttr { fd: self.fd.as_raw_fd() as u32, pad: 0 };
        sys::plain(Command::MapFreeze, &mut attr).map(drop).map_err(|e| self.error("freeze map", e))
    }

    /// Writes the value of `key` into `value`; false if there is none.
    ///
    /// # Panics
    /// If a length is not the map's.
    pub fn lookup(&self, key: &[u8], value: &mut [u8]) -> Result<bool> {
        assert_eq!(value.len(), self.value_len, "value of map {}", self.name);
        let mut attr =
            ElementAttr { key: self.key(key), value: value.as_mut_ptr() as u64, ..self.element_attr() };
        // JUSTIFICATION: the kernel reads the key and writes the value.
        // SAFETY: both slices live across the call and have the kernel's sizes, asserted above.
        match unsafe { sys::bpf(Command::MapLookup, &mut attr) } {
            Ok(_) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(e) => Err(self.error("look up in map", e)),
        }
    }

    /// Creates or replaces an entry.
    ///
    /// # Panics
    /// If a length is not the map's.
    pub fn update(&self, key: &[u8], value: &[u8], mode: UpdateMode) -> Result<()> {
        assert_eq!(value.len(), self.value_len, "value of map {}", self.name);
        let mut attr = ElementAttr {
            key: self.key(key),
            value: value.as_ptr() as u64,
            flags: mode as u64,
            ..self.element_attr()
        };
        // JUSTIFICATION: the kernel reads key and value.
        // SAFETY: both slices live across the call and have the kernel's sizes, asserted above.
        let result = unsafe { sys::bpf(Command::MapUpdate, &mut attr) }
            .map(drop)
            .map_err(|e| self.refused("update map", e));
        if let Some(observer) = &self.observer {
            observer.updated(key, value, &result);
        }
        result
    }

    /// Deletes an entry; false if there was none.
    ///
    /// # Panics
    /// If the key's length is not the map's.
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        let mut attr = ElementAttr { key: self.key(key), ..self.element_attr() };
        // JUSTIFICATION: the kernel reads the key.
        // SAFETY: the slice lives across the call and has the kernel's size, asserted in key().
        let result = match unsafe { sys::bpf(Command::MapDelete, &mut attr) } {
            Ok(_) => Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
            Err(e) => Err(self.error("delete from map", e)),
        };
        if let Some(observer) = &self.observer {
            observer.deleted(key, &result);
        }
        result.map(|()| true)
    }

    /// Deletes an entry and returns its value, atomically; false if there was none. Hash maps on Linux 5.14 or newer,
    /// others refuse it.
    ///
    /// # Panics
    /// If a length is not the map's.
    pub fn take(&self, key: &[u8], value: &mut [u8]) -> Result<bool> {
        assert_eq!(value.len(), self.value_len, "value of map {}", self.name);
        let mut attr =
            ElementAttr { key: self.key(key), value: value.as_mut_ptr() as u64, ..self.element_attr() };
        // JUSTIFICATION: the kernel reads the key and writes the value.
        // SAFETY: both slices live across the call and have the kernel's sizes, asserted above.
        match unsafe { sys::bpf(Command::MapLookupAndDelete, &mut attr) } {
            Ok(_) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(e) => Err(self.error("take out of map", e)),
        }
    }

    /// Writes the key that follows `key` (the first one for `None`) into `next`; false at the end.
    ///
    /// # Panics
    /// If a length is not the map's.
    pub fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result<bool> {
        assert_eq!(next.len(), self.layout.key_size as usize, "key of map {}", self.name);
        let mut attr = ElementAttr {
            key: key.map_or(0, |k| self.key(k)),
            value: next.as_mut_ptr() as u64,
            ..self.element_attr()
        };
        // JUSTIFICATION: the kernel reads one key and writes another.
        // SAFETY: both slices live across the call and have the kernel's size, asserted above.
        match unsafe { sys::bpf(Command::MapNextKey, &mut attr) } {
            Ok(_) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(e) => Err(self.error("walk map", e)),
        }
    }

    /// Creates or replaces many entries in one system call (more on kernels without it). Keys and values lie one after
    /// the other. One grace period for all in maps of maps.
    ///
    /// # Panics
    /// If the lengths are not multiples of the map's.
    pub fn update_batch(&self, keys: &[u8], values: &[u8]) -> Result<()> {
        let count = self.count(keys);
        assert_eq!(values.len(), count * self.value_len, "values of map {}", self.name);
        if count == 0 {
            return Ok(());
        }
        let mut attr = BatchAttr {
            keys: keys.as_ptr() as u64,
            values: values.as_ptr() as u64,
            count: count as u32,
            map_fd: self.fd.as_raw_fd() as u32,
            ..BatchAttr::default()
        };
        // JUSTIFICATION: the kernel reads keys and values.
        // SAFETY: count times the kernel's sizes, asserted above; both live across the call.
        let result = match unsafe { sys::bpf(Command::MapUpdateBatch, &mut attr) } {
            Ok(_) => Ok(()),
            Err(e) if no_batch(&e) => {
                for (key, value) in self.rows(keys, values) {
                    self.update(key, value, UpdateMode::Any)?;
                }
                return Ok(());
            }
            Err(e) => Err(self.refused("update many rows of map", e)),
        };
        if let Some(observer) = &self.observer {
            self.rows(keys, values).for_each(|(key, value)| observer.updated(key, value, &result));
        }
        result
    }

    /// Deletes many entries; missing ones are no error.
    ///
    /// # Panics
    /// If the length is not a multiple of the map's.
    pub fn delete_batch(&self, keys: &[u8]) -> Result<()> {
        let size = self.layout.key_size as usize;
        let mut rest = keys;
        while self.count(rest) > 0 {
            let mut attr = BatchAttr {
                keys: rest.as_ptr() as u64,
                count: self.count(rest) as u32,
                map_fd: self.fd.as_raw_fd() as u32,
                ..BatchAttr::default()
            };
            // JUSTIFICATION: the kernel reads the keys.
            // SAFETY: count times the kernel's key size; the slice lives across the call.
            let deleted = unsafe { sys::bpf(Command::MapDeleteBatch, &mut attr) };
            let observed = |keys: &[u8]| {
                if let Some(observer) = &self.observer {
                    keys.chunks_exact(size).for_each(|key| observer.deleted(key, &Ok(())));
                }
            };
            match deleted {
                Ok(_) => {
                    observed(rest);
                    return Ok(());
                }
                // The kernel stops at a missing key, after having deleted `count` keys: continue behind it.
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                    observed(&rest[..(attr.count as usize * size).min(rest.len())]);
                    rest = &rest[((attr.count as usize + 1) * size).min(rest.len())..];
                }
                Err(e) if no_batch(&e) => {
                    for key in rest.chunks_exact(size) {
                        self.delete(key)?;
                    }
                    return Ok(());
                }
                Err(e) => return Err(self.error("delete many rows of map", e)),
            }
        }
        Ok(())
    }

    /// Whether the map has no entry; costs one system call, independent of the size. Arrays are never empty.
    pub fn is_empty(&self) -> Result<bool> {
        let mut key = vec![0; self.layout.key_size as usize];
        Ok(!self.next_key(None, &mut key)?)
    }

    /// Returns all entries as (keys, values), one after the other. Entries that come or go meanwhile may be missing or
    /// stale, others are seen exactly once (hash maps on kernels without batches: nearly always).
    pub fn entries(&self) -> Result<(Vec<u8>, Vec<u8>)> {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        self.scan(|k, v| {
            keys.extend_from_slice(k);
            values.extend_from_slice(v);
        })?;
        Ok((keys, values))
    }

    /// Reads all entries in chunks of some thousand, so that a large map needs little memory: `visit` gets keys and
    /// values that lie one after the other.
    pub fn scan(&self, mut visit: impl FnMut(&[u8], &[u8])) -> Result<()> {
        match self.scan_by_batch(&mut visit) {
            Err(e) if no_batch_errno(e.errno()) => self.scan_by_key(&mut visit),
            other => other,
        }
    }

    fn scan_by_batch(&self, visit: &mut impl FnMut(&[u8], &[u8])) -> Result<()> {
        let (key, value) = (self.layout.key_size as usize, self.value_len);
        let mut chunk = 4096.min(self.layout.max_entries.max(16) as usize);
        let (mut keys, mut values) = (vec![0u8; chunk * key], vec![0u8; chunk * value]);
        let mut cursor = vec![0u8; key.max(8)];
        let mut next_cursor = cursor.clone();
        let mut first = true;
        loop {
            let mut attr = BatchAttr {
                in_batch: if first { 0 } else { cursor.as_ptr() as u64 },
                out_batch: next_cursor.as_mut_ptr() as u64,
                keys: keys.as_mut_ptr() as u64,
                values: values.as_mut_ptr() as u64,
                count: chunk as u32,
                map_fd: self.fd.as_raw_fd() as u32,
                ..BatchAttr::default()
            };
            // JUSTIFICATION: the kernel writes a chunk of keys, values and a cursor (4 bytes for hashes, a key else).
            // SAFETY: the buffers hold `chunk` entries of the kernel's sizes and for the larger cursor.
            let answer = unsafe { sys::bpf(Command::MapLookupBatch, &mut attr) };
            let errno = answer.err().and_then(|e| e.raw_os_error());
            match errno {
                None | Some(libc::ENOENT) => {
                    let got = (attr.count as usize).min(chunk);
                    visit(&keys[..got * key], &values[..got * value]);
                    if errno.is_some() {
                        return Ok(());
                    }
                }
                // A hash bucket holds more entries than the chunk: retry with a larger one.
                Some(libc::ENOSPC) if chunk < 1 << 24 => {
                    chunk *= 2;
                    keys.resize(chunk * key, 0);
                    values.resize(chunk * value, 0);
                    continue;
                }
                Some(n) => {
                    return Err(self.error("read many rows of map", io::Error::from_raw_os_error(n)));
                }
            }
            std::mem::swap(&mut cursor, &mut next_cursor);
            first = false;
        }
    }

    fn scan_by_key(&self, visit: &mut impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut key: Option<Vec<u8>> = None;
        let mut next = vec![0; self.layout.key_size as usize];
        let mut value = vec![0; self.value_len];
        // If the current key is deleted meanwhile, the kernel restarts the iteration; the bound ends an endless one
        // with an error.
        for _ in 0..self.layout.max_entries as u64 * 2 + 2 {
            if !self.next_key(key.as_deref(), &mut next)? {
                return Ok(());
            }
            if self.lookup(&next, &mut value)? {
                visit(&next, &value);
            }
            key = Some(next.clone());
        }
        Err(self.error("walk to the end of map", io::ErrorKind::Interrupted.into()))
    }

    fn rows<'a>(&self, keys: &'a [u8], values: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        keys.chunks_exact(self.layout.key_size as usize).zip(values.chunks_exact(self.value_len))
    }

    fn count(&self, keys: &[u8]) -> usize {
        let size = self.layout.key_size as usize;
        assert!(keys.len().is_multiple_of(size), "keys of map {}", self.name);
        keys.len() / size
    }

    fn key(&self, key: &[u8]) -> u64 {
        assert_eq!(key.len(), self.layout.key_size as usize, "key of map {}", self.name);
        key.as_ptr() as u64
    }

    fn element_attr(&self) -> ElementAttr {
        ElementAttr { map_fd: self.fd.as_raw_fd() as u32, ..ElementAttr::default() }
    }

    /// Returns the error of a write: full hash maps return E2BIG, full tries ENOSPC.
    fn refused(&self, operation: &'static str, source: io::Error) -> Error {
        let full = matches!(source.raw_os_error(), Some(libc::E2BIG | libc::ENOSPC));
        if full && !self.layout.map_type.is_array() {
            return Error::Full { name: self.name.clone(), entries: self.layout.max_entries, source };
        }
        self.error(operation, source)
    }

    fn error(&self, operation: &'static str, source: io::Error) -> Error {
        Error::syscall(operation, &self.name, source)
    }
}

impl AsFd for RawMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn no_batch(error: &io::Error) -> bool {
    no_batch_errno(error.raw_os_error())
}

fn no_batch_errno(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::EINVAL | libc::EOPNOTSUPP | ENOTSUPP))
}

fn layout_of(info: &RawMapInfo) -> Layout {
    Layout {
        map_type: MapType::from_number(info.map_type),
        key_size: info.key_size,
        value_size: info.value_size,
        max_entries: info.max_entries,
        flags: MapFlags(info.map_flags),
    }
}

/// Returns the number of possible CPUs, which sizes per-CPU values; 1 if the kernel does not report it.
pub fn possible_cpus() -> usize {
    static CPUS: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *CPUS.get_or_init(|| {
        let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
        cpus_in(&text).count().max(1)
    })
}

/// Returns the CPUs that are online.
pub(crate) fn online_cpus() -> Result<Vec<u32>> {
    let path = Path::new("/sys/devices/system/cpu/online");
    let text = std::fs::read_to_string(path).map_err(|source| Error::file("read", path, source))?;
    Ok(cpus_in(&text).collect())
}

/// Returns the CPUs of a list such as `0-3,8`.
fn cpus_in(list: &str) -> impl Iterator<Item = u32> {
    list.trim()
        .split(',')
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse().ok()?..=last.parse().ok()?)
        })
        .flatten()
}

#[cfg(test)]
mod tests {
    #[test]
    fn cpu_lists() {
        let cpus = |list| super::cpus_in(list).collect::<Vec<_>>();
        assert_eq!(cpus("0-1\n"), [0, 1]);
        assert_eq!(cpus("0"), [0]);
        assert_eq!(cpus("0-3,8,10-11"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(cpus(""), []);
    }
}
