//! Programs that stay pinned for the next run: a start with the same object, settings and maps takes them, and the
//! kernel need not verify them again, which is most of a restart.

use std::collections::BTreeSet;

use bpf::{BpfFs, Collection, names_in};
use datapath_abi::{NodeConfig, Pod};
use datapath_api::{DatapathError, Step};

use crate::programs::set::SharedMap;

/// Returns all that the programs depend on: the object, the settings and the maps by their kernel ids. Two loads with
/// equal records give equal programs.
pub(super) fn record(config: &NodeConfig, shared: &[SharedMap]) -> Vec<u8> {
    let mut ids: Vec<(&str, u32)> =
        shared.iter().map(|(name, map)| (&**name, map.as_ref().map_or(0, |map| map.id()))).collect();
    ids.sort_unstable();
    let mut record = datapath_object::DIGEST.as_bytes().to_vec();
    record.extend_from_slice(config.as_bytes());
    for (name, id) in ids {
        record.extend_from_slice(name.as_bytes());
        record.push(0);
        record.extend_from_slice(id.as_bytes());
    }
    record
}

/// Opens the kept programs of that record; none if there are no such, or not all of them.
pub(super) fn open(fs: &BpfFs, programs: &BTreeSet<&str>, record: &[u8]) -> Option<Collection> {
    let folder = fs.program_sets();
    for name in names_in(&folder).unwrap_or_default() {
        match Collection::open(&folder.join(&name), programs, &[datapath_object::CALLS], record) {
            Ok(Some(collection)) => return Some(collection),
            Ok(None) => {}
            // Loading does not depend on them.
            Err(error) => tracing::debug!(%error, folder = name, "Kept programs cannot be used"),
        }
    }
    None
}

/// Keeps the programs whose array has that id.
pub(super) fn keep(fs: &BpfFs, programs: &Collection, id: u32, record: &[u8]) -> Result<(), DatapathError> {
    let folder = fs.program_sets().join(id.to_string());
    programs.pin(&folder, &[datapath_object::CALLS], record).step(|| "keep the programs".to_owned())
}

/// Removes the kept programs of all other arrays.
pub(super) fn remove_others(fs: &BpfFs, id: u32) -> Result<(), DatapathError> {
    let (folder, own) = (fs.program_sets(), id.to_string());
    for name in names_in(&folder).step(|| "list kept programs".to_owned())? {
        if name != own {
            Collection::unpin(&folder.join(&name)).step(|| format!("remove the kept programs {name}"))?;
        }
    }
    Ok(())
}
