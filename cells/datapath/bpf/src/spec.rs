//! Map layouts: the desired one, the one of an existing map, and their comparison.

use std::borrow::Cow;
use std::fmt;

/// The kernel's map types that the datapath uses, with the numbers of `enum bpf_map_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MapType {
    /// Hash table.
    Hash,
    /// Array, zeroed at creation; entries cannot be deleted.
    Array,
    /// Programs by slot, for tail calls.
    ProgArray,
    /// Perf rings by CPU.
    PerfEventArray,
    /// Hash table with a value for each CPU.
    PerCpuHash,
    /// Array with a value for each CPU.
    PerCpuArray,
    /// Hash table that drops the least recently used entries.
    LruHash,
    /// The same with a value for each CPU.
    LruPerCpuHash,
    /// Longest prefix match.
    LpmTrie,
    /// Maps by index.
    ArrayOfMaps,
    /// Maps by key.
    HashOfMaps,
    /// A type that this agent does not use.
    Other(u32),
}

const TYPES: [(MapType, u32, &str); 11] = [
    (MapType::Hash, 1, "hash"),
    (MapType::Array, 2, "array"),
    (MapType::ProgArray, 3, "prog_array"),
    (MapType::PerfEventArray, 4, "perf_event_array"),
    (MapType::PerCpuHash, 5, "percpu_hash"),
    (MapType::PerCpuArray, 6, "percpu_array"),
    (MapType::LruHash, 9, "lru_hash"),
    (MapType::LruPerCpuHash, 10, "lru_percpu_hash"),
    (MapType::LpmTrie, 11, "lpm_trie"),
    (MapType::ArrayOfMaps, 12, "array_of_maps"),
    (MapType::HashOfMaps, 13, "hash_of_maps"),
];

impl MapType {
    /// Returns its number in `enum bpf_map_type`.
    pub fn number(self) -> u32 {
        match self {
            MapType::Other(number) => number,
            known => TYPES.iter().find(|(t, ..)| *t == known).map_or(0, |(_, number, _)| *number),
        }
    }

    /// Returns the type with that number.
    pub fn from_number(number: u32) -> MapType {
        TYPES.iter().find(|(_, n, _)| *n == number).map_or(MapType::Other(number), |(t, ..)| *t)
    }

    /// Whether each CPU has a separate value.
    pub fn is_per_cpu(self) -> bool {
        matches!(self, MapType::PerCpuHash | MapType::PerCpuArray | MapType::LruPerCpuHash)
    }

    /// Whether entries exist from creation on and cannot be deleted.
    pub fn is_array(self) -> bool {
        matches!(
            self,
            MapType::Array
                | MapType::PerCpuArray
                | MapType::ProgArray
                | MapType::PerfEventArray
                | MapType::ArrayOfMaps
        )
    }

    /// Whether values are kernel objects (programs, perf events, maps), which cannot be copied from user space.
    pub fn holds_objects(self) -> bool {
        matches!(
            self,
            MapType::ProgArray | MapType::PerfEventArray | MapType::ArrayOfMaps | MapType::HashOfMaps
        )
    }

    /// Whether a full map drops old entries instead of refusing new ones.
    pub fn is_lru(self) -> bool {
        matches!(self, MapType::LruHash | MapType::LruPerCpuHash)
    }
}

impl fmt::Display for MapType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match TYPES.iter().find(|(t, ..)| t == self) {
            Some((_, _, name)) => f.write_str(name),
            None => write!(f, "type {}", self.number()),
        }
    }
}

/// Map flags as the kernel knows them (`BPF_F_*`).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MapFlags(pub u32);

impl MapFlags {
    /// No flag.
    pub const NONE: MapFlags = MapFlags(0);
    /// Entries are allocated when they are added (`BPF_F_NO_PREALLOC`).
    pub const NO_PREALLOC: MapFlags = MapFlags(1);
    /// An LRU list for each CPU (`BPF_F_NO_COMMON_LRU`).
    pub const NO_COMMON_LRU: MapFlags = MapFlags(2);
    /// Programs may only read (`BPF_F_RDONLY_PROG`).
    pub const READ_ONLY_PROG: MapFlags = MapFlags(0x80);

    /// Returns the union of both sets.
    pub const fn with(self, other: MapFlags) -> MapFlags {
        MapFlags(self.0 | other.0)
    }

    /// Returns this set without the other.
    pub const fn without(self, other: MapFlags) -> MapFlags {
        MapFlags(self.0 & !other.0)
    }

    /// Whether all flags of the other set are in this one.
    pub const fn contains(self, other: MapFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Debug for MapFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Everything about a map that must be equal for two programs to share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Its type.
    pub map_type: MapType,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value (of one CPU's value for per-CPU maps).
    pub value_size: u32,
    /// Entries at most.
    pub max_entries: u32,
    /// Flags.
    pub flags: MapFlags,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layout { map_type, key_size, value_size, max_entries, flags } = self;
        write!(f, "{map_type} key {key_size} value {value_size} max {max_entries} flags {flags:?}")
    }
}

/// The action for a pinned map, given the desired layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The pinned map has the layout.
    Reuse,
    /// A new map with the same entries takes its place.
    Migrate,
    /// A new, empty map takes its place: the values are kernel objects, which their owner writes again.
    Replace,
    /// The map cannot be used; the reason.
    Refuse(&'static str),
}

impl Layout {
    /// Compares the desired layout (`self`) with the one found.
    ///
    /// As in Cilium 1.20 all five properties must be equal, except for one flag: a map without `BPF_F_RDONLY_PROG` may
    /// be used if one with it is desired (it only promises less to the verifier), but not vice versa.
    pub fn compare(&self, found: &Layout) -> Verdict {
        if self.map_type != found.map_type {
            return Verdict::Refuse("the types differ");
        }
        if self.key_size != found.key_size {
            return Verdict::Refuse("the keys differ in size");
        }
        if self.value_size != found.value_size {
            return Verdict::Refuse("the values differ in size");
        }
        let read_only = MapFlags::READ_ONLY_PROG;
        let flags_fit = found.flags == self.flags
            || (self.flags.contains(read_only) && found.flags == self.flags.without(read_only));
        if self.max_entries == found.max_entries && flags_fit {
            return Verdict::Reuse;
        }
        if self.map_type.holds_objects() { Verdict::Replace } else { Verdict::Migrate }
    }
}

/// A map to create or open: its name and layout, and the layout of the maps inside if it holds maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// The full name, which is also the pin's; the kernel keeps the first 15 bytes.
    pub name: Cow<'static, str>,
    /// Type, sizes and flags.
    pub layout: Layout,
    /// Layout of the inner maps, for maps of maps.
    pub inner: Option<Layout>,
}

impl MapSpec {
    /// Creates a spec; usable in constants.
    pub const fn new(
        name: &'static str,
        map_type: MapType,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        flags: MapFlags,
    ) -> MapSpec {
        MapSpec {
            name: Cow::Borrowed(name),
            layout: Layout { map_type, key_size, value_size, max_entries, flags },
            inner: None,
        }
    }

    /// Returns the spec with inner maps of that layout, for a map of maps.
    pub const fn with_inner(mut self, inner: Layout) -> MapSpec {
        self.inner = Some(inner);
        self
    }

    /// Returns the layout with the sizes that the kernel will report: a perf event array without a size has one entry per
    /// CPU.
    pub fn reported_layout(&self) -> Layout {
        let mut layout = self.layout;
        if layout.map_type == MapType::PerfEventArray && layout.max_entries == 0 {
            layout.max_entries = crate::possible_cpus() as u32;
        }
        layout
    }

    /// Returns the spec under another name.
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> MapSpec {
        self.name = name.into();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Layout = Layout {
        map_type: MapType::Hash,
        key_size: 20,
        value_size: 48,
        max_entries: 65535,
        flags: MapFlags(0x81),
    };

    #[test]
    fn equal_layouts_are_reused_and_the_read_only_flag_may_be_missing() {
        assert_eq!(WANTED.compare(&WANTED), Verdict::Reuse);
        let without = Layout { flags: MapFlags(0x01), ..WANTED };
        assert_eq!(WANTED.compare(&without), Verdict::Reuse);
        assert_eq!(
            without.compare(&WANTED),
            Verdict::Migrate,
            "a read-only map cannot serve a writing program"
        );
    }

    #[test]
    fn size_and_flags_migrate_and_shapes_refuse() {
        assert_eq!(WANTED.compare(&Layout { max_entries: 100, ..WANTED }), Verdict::Migrate);
        assert_eq!(WANTED.compare(&Layout { flags: MapFlags(0x80), ..WANTED }), Verdict::Migrate);
        for found in [
            Layout { map_type: MapType::LruHash, ..WANTED },
            Layout { key_size: 16, ..WANTED },
            Layout { value_size: 40, ..WANTED },
        ] {
            assert!(matches!(WANTED.compare(&found), Verdict::Refuse(_)), "{found}");
        }
        let calls = Layout { map_type: MapType::ProgArray, key_size: 4, value_size: 4, ..WANTED };
        assert_eq!(calls.compare(&Layout { max_entries: 50, ..calls }), Verdict::Replace);
    }

    #[test]
    fn type_numbers_are_the_kernels() {
        for (map_type, number, _) in TYPES {
            assert_eq!(MapType::from_number(number), map_type);
            assert_eq!(map_type.number(), number);
        }
        assert_eq!(MapType::from_number(27).to_string(), "type 27");
    }
}
