//! The schema version of map entries, for changes of meaning without a change of layout: an integer in one of Apiary's
//! own pinned maps.
//!
//! It is pinned beside the maps instead of stored in the state folder, as either can be lost without the other.

use bpf::{BpfFs, MapFlags, MapSpec, MapType, RawMap, UpdateMode};

use crate::error::{Error, Result};

/// The version that this agent writes, and the newest that it supports. Increment it when entries change their meaning
/// in the same layout.
pub const SCHEMA: u32 = 1;

/// The map with the version.
pub(crate) const SPEC: MapSpec = MapSpec::new("ep_schema", MapType::Array, 4, 4, 1, MapFlags::NONE);

/// Refuses the maps of a newer agent. Maps without a version are of the first agent version or of Cilium.
pub(crate) fn check(fs: &BpfFs) -> Result<()> {
    let map = match RawMap::open(&fs.map(&SPEC.name)) {
        Ok(map) => map,
        Err(e) if e.is_not_found() => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    match recorded_schema(&map)? {
        found if found > SCHEMA => Err(Error::Newer { found, known: SCHEMA }),
        _ => Ok(()),
    }
}

/// Writes this agent's version.
pub(crate) fn record(map: &RawMap) -> Result<()> {
    if recorded_schema(map)? != SCHEMA {
        map.update(&[0; 4], &SCHEMA.to_ne_bytes(), UpdateMode::Any)?;
    }
    Ok(())
}

/// Returns the version in the pinned map `ep_schema`: its first word, as newer agents may append others.
pub fn recorded_schema(map: &RawMap) -> Result<u32> {
    let mut value = vec![0; map.value_len()];
    map.lookup(&[0; 4], &mut value)?;
    Ok(value.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word)))
}
