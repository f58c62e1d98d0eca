//! Rows of endpoints' policy maps: read, changed in place, or replaced whole.

use std::sync::Arc;

use datapath_abi::{EndpointConfig, PolicyEntry, PolicyKey};

use crate::endpoints::kernel::KernelDatapath;
use crate::endpoints::pool::PolicyMap;
use datapath_api::{Datapath, PolicyWrite};
use datapath_api::{DatapathError, Step};

/// `ENOSPC`, the same on all architectures of Linux: what a full trie answers.
const ENOSPC: i32 = 28;

/// Rows that allow everything, both directions.
pub(crate) fn allow_all(map: &PolicyMap, id: u16) -> Result<(), DatapathError> {
    let rows = [false, true].map(|egress| (PolicyKey::any(egress), PolicyEntry::allow(0)));
    map.update_batch(&rows).step(|| format!("endpoint {id}: write policy rows"))
}

pub(crate) fn rows(
    datapath: &KernelDatapath,
    id: u16,
) -> Result<Vec<(PolicyKey, PolicyEntry)>, DatapathError> {
    let (_, map) = open(datapath, id)?;
    map.entries().step(|| format!("endpoint {id}: read policy rows"))
}

pub(crate) fn write(datapath: &KernelDatapath, id: u16, writes: &[PolicyWrite]) -> Result<(), DatapathError> {
    let (_, map) = open(datapath, id)?;
    for run in writes.chunk_by(|a, b| is_set(a) == is_set(b)) {
        let done = match run {
            [PolicyWrite::Set(key, entry)] => map.update(key, entry),
            [PolicyWrite::Delete(key)] => map.delete(key).map(drop),
            [PolicyWrite::Set(..), ..] => map.update_batch(&run.iter().filter_map(set).collect::<Vec<_>>()),
            _ => map.delete_batch(&run.iter().filter_map(deleted).collect::<Vec<_>>()),
        };
        told(datapath, id, done)?;
    }
    Ok(())
}

/// A spare map gets the rows and the pin, then the settings row names its slot: one aligned word, which every program
/// reads once a packet. The old map rests before it is emptied, packets may still look into it.
pub(crate) fn swap(
    datapath: &KernelDatapath,
    id: u16,
    rows: &[(PolicyKey, PolicyEntry)],
) -> Result<(), DatapathError> {
    let capacity = datapath.policy_capacity();
    if rows.len() > capacity {
        return Err(DatapathError::PolicyFull { id, capacity });
    }
    let (old, old_map) = open(datapath, id)?;
    let pool = datapath.pool();
    let (slot, map) = pool.take()?;
    let filled = told(datapath, id, map.update_batch(rows))
        .and_then(|()| datapath.note_id(id, slot))
        .and_then(|()| datapath.pin_policy(id, &map));
    let row = EndpointConfig { policy_slot: slot, ..old };
    let switched = filled.and_then(|()| {
        let step = || format!("endpoint {id}: switch to another policy map");
        datapath.write_row(id, &row).step(step)
    });
    if switched.is_ok() {
        pool.give_back(old.policy_slot);
        return switched;
    }
    // The settings row still names the old slot: the endpoint's names must not lead to a map that others get.
    let back = datapath.note_id(id, old.policy_slot).and_then(|()| datapath.pin_policy(id, &old_map));
    if let Err(error) = back {
        tracing::debug!(endpointID = id, %error, "The watchdog pins the policy map again");
    }
    pool.give_back(slot);
    switched
}

/// The settings row and the policy map that it names.
fn open(datapath: &KernelDatapath, id: u16) -> Result<(EndpointConfig, Arc<PolicyMap>), DatapathError> {
    let row = datapath.row(id);
    if row.id != u32::from(id) || row.policy_slot == 0 {
        return Err(DatapathError::NotAttached { id });
    }
    let map = datapath.pool().map(row.policy_slot)?.ok_or(DatapathError::NotAttached { id })?;
    Ok((row, map))
}

/// Names a full map as such.
fn told(datapath: &KernelDatapath, id: u16, done: bpf::Result<()>) -> Result<(), DatapathError> {
    match done {
        Err(e) if e.errno() == Some(ENOSPC) => {
            Err(DatapathError::PolicyFull { id, capacity: datapath.policy_capacity() })
        }
        other => other.step(|| format!("endpoint {id}: write policy rows")),
    }
}

fn is_set(write: &PolicyWrite) -> bool {
    matches!(write, PolicyWrite::Set(..))
}

fn set(write: &PolicyWrite) -> Option<(PolicyKey, PolicyEntry)> {
    match write {
        PolicyWrite::Set(key, entry) => Some((*key, *entry)),
        PolicyWrite::Delete(_) => None,
    }
}

fn deleted(write: &PolicyWrite) -> Option<PolicyKey> {
    match write {
        PolicyWrite::Delete(key) => Some(*key),
        PolicyWrite::Set(..) => None,
    }
}
