//! Policy maps of endpoints: assigned from the pool, pinned under Cilium's names, read, changed in place or replaced
//! whole.

use std::sync::Arc;

use bpf::{RawMap, possible_cpus, unpin, values_of};
use datapath_abi::{EndpointConfig, PolicyEntry, PolicyKey, PolicyStatsKey, PolicyStatsValue};
use datapath_api::{DatapathError, PolicyWrite, Step};
use maps::{Maps, policy_name};

use crate::endpoints::pool::{PolicyMap, PolicyPool};
use crate::endpoints::table::LockedEndpoint;

/// The kernel's error for a full trie; the same value on all architectures of Linux.
const ENOSPC: i32 = 28;

/// The policy maps of all endpoints. The settings entry names an endpoint's slot; the pin follows it.
#[derive(Debug)]
pub(crate) struct PolicyMaps {
    maps: Arc<Maps>,
    pool: PolicyPool,
}

impl PolicyMaps {
    /// Creates policy maps with an empty pool.
    pub(crate) fn new(maps: Arc<Maps>) -> PolicyMaps {
        PolicyMaps { pool: PolicyPool::new(maps.clone()), maps }
    }

    pub(crate) fn pool(&self) -> &PolicyPool {
        &self.pool
    }

    /// Returns the number of entries that a policy map can hold.
    pub(crate) fn capacity(&self) -> usize {
        self.maps.policy_spec(0).layout.max_entries as usize
    }

    /// Returns the slot of the endpoint's policy map, an empty one from the pool if it has none. The map is pinned.
    pub(crate) fn assign(&self, endpoint: &LockedEndpoint<'_>) -> Result<u32, DatapathError> {
        let old = endpoint.config();
        if old.id != 0
            && old.policy_slot != 0
            && let Some(map) = self.pool.map(old.policy_slot)?
        {
            self.pin(endpoint.id(), &map)?;
            return Ok(old.policy_slot);
        }
        let (slot, map) = self.pool.take()?;
        if let Err(e) = endpoint.write_id(slot).and_then(|()| self.pin(endpoint.id(), &map)) {
            self.pool.give_back(slot);
            return Err(e);
        }
        Ok(slot)
    }

    /// Returns a slot from [`PolicyMaps::assign`] to the pool after a failure, unless the settings entry names it by
    /// now.
    pub(crate) fn unassign(&self, endpoint: &LockedEndpoint<'_>, slot: u32) {
        let config = endpoint.config();
        if config.policy_slot == slot {
            return;
        }
        if config.id == 0
            && let Err(error) = self.unpin(endpoint.id()).and(endpoint.remove_id())
        {
            tracing::debug!(endpointID = endpoint.id(), %error, "The next prune removes names of the endpoint");
        }
        self.pool.give_back(slot);
    }

    /// Pins the map under the endpoint's name, in place of another one that has it.
    pub(crate) fn pin(&self, id: u16, map: &PolicyMap) -> Result<(), DatapathError> {
        let path = self.maps.path(&policy_name(id));
        match map.pin(&path) {
            Err(e) if e.is_existing() => {
                if RawMap::open(&path).is_ok_and(|old| old.id() == map.raw().id()) {
                    return Ok(());
                }
                self.maps.fs().replace_pin(&path, |pending| map.pin(pending))
            }
            other => other,
        }
        .step(|| format!("endpoint {id}: pin its policy map"))
    }

    /// Removes the endpoint's pin.
    pub(crate) fn unpin(&self, id: u16) -> bpf::Result<bool> {
        unpin(&self.maps.path(&policy_name(id)))
    }

    /// Whether the pin of an endpoint leads to the map that its settings entry names.
    pub(crate) fn is_pinned(&self, config: &EndpointConfig) -> Result<bool, DatapathError> {
        let path = self.maps.path(&policy_name(config.id as u16));
        let Ok(pinned) = RawMap::open(&path) else { return Ok(false) };
        Ok(self.pool.id(config.policy_slot)? == Some(pinned.id()))
    }

    /// Returns the entries of the endpoint's map, in no order.
    pub(crate) fn entries(
        &self,
        endpoint: &LockedEndpoint<'_>,
    ) -> Result<Vec<(PolicyKey, PolicyEntry)>, DatapathError> {
        let (_, map) = self.open(endpoint)?;
        map.entries().step(|| format!("endpoint {}: read policy rows", endpoint.id()))
    }

    /// Returns the counts of entries of all maps, summed over the CPUs.
    pub(crate) fn counts(&self) -> Result<Vec<(PolicyStatsKey, PolicyStatsValue)>, DatapathError> {
        let mut counts = Vec::new();
        let read = |keys: &[u8], values: &[u8]| {
            let values = values_of::<PolicyStatsValue>(values);
            let sums = values.chunks(possible_cpus()).map(|of_cpus| PolicyStatsValue {
                packets: of_cpus.iter().map(|value| value.packets).sum(),
                bytes: of_cpus.iter().map(|value| value.bytes).sum(),
            });
            counts.extend(values_of::<PolicyStatsKey>(keys).into_iter().zip(sums));
        };
        let map = self.maps.policy_stats()?;
        map.raw().scan(read).step(|| "read the counts of policy maps".to_owned())?;
        Ok(counts)
    }

    /// Changes the map in place, in this order; neighbouring writes of a kind are one system call.
    pub(crate) fn write(
        &self,
        endpoint: &LockedEndpoint<'_>,
        writes: &[PolicyWrite],
    ) -> Result<(), DatapathError> {
        let (_, map) = self.open(endpoint)?;
        for run in writes.chunk_by(|a, b| is_set(a) == is_set(b)) {
            let written = match run {
                [PolicyWrite::Set(key, entry)] => map.update(key, entry),
                [PolicyWrite::Delete(key)] => map.delete(key).map(drop),
                [PolicyWrite::Set(..), ..] => {
                    map.update_batch(&run.iter().filter_map(set).collect::<Vec<_>>())
                }
                _ => map.delete_batch(&run.iter().filter_map(deleted).collect::<Vec<_>>()),
            };
            self.map_full_error(endpoint.id(), written)?;
        }
        Ok(())
    }

    /// Replaces the map: a map of the pool gets the entries and the pin, then the settings entry names its slot. The
    /// slot is one aligned word, which every program reads once per packet, so the swap is atomic. The old map is
    /// quarantined before it is emptied, as programs in flight may still read it.
    pub(crate) fn swap(
        &self,
        endpoint: &LockedEndpoint<'_>,
        entries: &[(PolicyKey, PolicyEntry)],
    ) -> Result<(), DatapathError> {
        let (id, capacity) = (endpoint.id(), self.capacity());
        if entries.len() > capacity {
            return Err(DatapathError::PolicyFull { id, capacity });
        }
        let (old, old_map) = self.open(endpoint)?;
        let (slot, map) = self.pool.take()?;
        let filled = self
            .map_full_error(id, map.update_batch(entries))
            .and_then(|()| endpoint.write_id(slot))
            .and_then(|()| self.pin(id, &map));
        let config = EndpointConfig { policy_slot: slot, ..old };
        let switched = filled.and_then(|()| {
            let step = || format!("endpoint {id}: switch to another policy map");
            endpoint.write_config(&config).step(step)
        });
        if switched.is_ok() {
            self.pool.give_back(old.policy_slot);
            return switched;
        }
        // The settings entry still names the old slot: the pin must not refer to a map that another endpoint gets next.
        let back = endpoint.write_id(old.policy_slot).and_then(|()| self.pin(id, &old_map));
        if let Err(error) = back {
            tracing::debug!(endpointID = id, %error, "The watchdog pins the policy map again");
        }
        self.pool.give_back(slot);
        switched
    }

    /// Returns the settings entry and the policy map that it names.
    fn open(&self, endpoint: &LockedEndpoint<'_>) -> Result<(EndpointConfig, Arc<PolicyMap>), DatapathError> {
        let (id, config) = (endpoint.id(), endpoint.config());
        if config.id != u32::from(id) || config.policy_slot == 0 {
            return Err(DatapathError::NotAttached { id });
        }
        let map = self.pool.map(config.policy_slot)?.ok_or(DatapathError::NotAttached { id })?;
        Ok((config, map))
    }

    /// Maps the error of a full map to [`DatapathError::PolicyFull`].
    fn map_full_error(&self, id: u16, written: bpf::Result<()>) -> Result<(), DatapathError> {
        match written {
            Err(e) if e.errno() == Some(ENOSPC) => {
                Err(DatapathError::PolicyFull { id, capacity: self.capacity() })
            }
            other => other.step(|| format!("endpoint {id}: write policy rows")),
        }
    }
}

/// Writes entries that allow everything, both directions.
pub(crate) fn allow_all(map: &PolicyMap, id: u16) -> Result<(), DatapathError> {
    let entries = [false, true].map(|egress| (PolicyKey::any(egress), PolicyEntry::allow(0)));
    map.update_batch(&entries).step(|| format!("endpoint {id}: write policy rows"))
}

/// Writes entries that allow everything, then removes all others: those of host policies of a previous run.
pub(crate) fn only_allow_all(map: &PolicyMap, id: u16) -> Result<(), DatapathError> {
    allow_all(map, id)?;
    let step = || format!("endpoint {id}: remove policy rows");
    let stale = map.entries().step(step)?.into_iter().map(|(key, _)| key);
    let stale: Vec<PolicyKey> = stale.filter(|key| *key != PolicyKey::any(key.egress != 0)).collect();
    if stale.is_empty() { Ok(()) } else { map.delete_batch(&stale).step(step).map(drop) }
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
