//! The kernel memory of a map at its creation, before entries are added.

use bpf::{Layout, MapFlags, MapType};

/// `struct htab_elem` of the kernel, without key and value.
const ELEMENT: u64 = 48;
/// `struct bucket`.
const BUCKET: u64 = 16;
const POINTER: u64 = 8;

/// Returns the bytes that the kernel allocates for an empty map: tables of buckets and slots, and all entries if they
/// are preallocated. Entries of tries and of maps without preallocation are allocated when added.
pub(crate) fn footprint(layout: &Layout, cpus: u64) -> u64 {
    let entries = u64::from(layout.max_entries);
    let (key, value) = (aligned(layout.key_size), aligned(layout.value_size));
    let preallocated = !layout.flags.contains(MapFlags::NO_PREALLOC);
    let hash = |row: u64| entries.next_power_of_two() * BUCKET + if preallocated { entries * row } else { 0 };
    match layout.map_type {
        MapType::LruHash | MapType::Hash => hash(ELEMENT + key + value),
        MapType::PerCpuHash | MapType::LruPerCpuHash => hash(ELEMENT + key + POINTER + value * cpus),
        MapType::HashOfMaps => hash(ELEMENT + key + POINTER),
        MapType::Array => entries * value,
        MapType::PerCpuArray => entries * (POINTER + value * cpus),
        MapType::ProgArray | MapType::ArrayOfMaps | MapType::PerfEventArray => entries * POINTER,
        _ => 0,
    }
}

fn aligned(bytes: u32) -> u64 {
    u64::from(bytes).next_multiple_of(8)
}
