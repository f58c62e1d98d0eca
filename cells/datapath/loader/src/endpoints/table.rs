//! The endpoints in the kernel's maps: their map entries as they were written last, in one table.

use std::collections::BTreeMap;
use std::sync::Arc;

use bpf::Map;
use datapath_abi::{EP_CONFIG_ENTRIES, EndpointConfig, ep_flag};
use datapath_api::{DatapathError, EndpointDatapath, Step};
use maps::Maps;

use crate::endpoints::lock_order::{Guard, Mutex, Rank};

/// Number of endpoint locks: more than the threads that change endpoints concurrently.
const ENDPOINT_LOCKS: usize = 64;

/// Settings entries of all endpoints, and the maps that refer to them (`ep_ids`, `ep_config`, `ep_by_ifindex`,
/// `cilium_lxc`). Only a [`LockedEndpoint`] writes entries of an endpoint.
#[derive(Debug)]
pub(crate) struct EndpointTable {
    maps: Arc<Maps>,
    state: Mutex<State>,
    /// By endpoint id. Different cells attach an endpoint and write its policy, without synchronization between them.
    locks: [Mutex<()>; ENDPOINT_LOCKS],
}

#[derive(Debug, Default)]
struct State {
    /// Settings entries as they were written last: the desired state, even if another process overwrites an entry.
    settings: BTreeMap<u16, EndpointConfig>,
    /// Endpoints with a deleted or moved interface, by its index.
    detached: BTreeMap<u32, u16>,
}

impl EndpointTable {
    /// Creates an empty table over these maps, which need not be open yet.
    pub(crate) fn new(maps: Arc<Maps>) -> EndpointTable {
        EndpointTable {
            maps,
            state: Mutex::new(Rank::State, State::default()),
            locks: [const { Mutex::new(Rank::Endpoint, ()) }; ENDPOINT_LOCKS],
        }
    }

    /// Locks an endpoint: until the guard is dropped, no other thread changes its settings or its policy map.
    pub(crate) fn lock(&self, id: u16) -> LockedEndpoint<'_> {
        let lock = &self.locks[usize::from(id) % ENDPOINT_LOCKS];
        LockedEndpoint { _guard: lock.lock(), table: self, id }
    }

    pub(crate) fn maps(&self) -> &Maps {
        &self.maps
    }

    /// Returns the settings entries in use, by id.
    pub(crate) fn all(&self) -> Vec<EndpointConfig> {
        self.state.lock().settings.values().copied().collect()
    }

    /// Returns the settings entry of an endpoint, all zero if there is none.
    pub(crate) fn config(&self, id: u16) -> EndpointConfig {
        self.state.lock().settings.get(&id).copied().unwrap_or_default()
    }

    /// Returns the endpoint that had the interface with this index when it disappeared.
    pub(crate) fn detached_from(&self, ifindex: u32) -> Option<u16> {
        self.state.lock().detached.get(&ifindex).copied()
    }

    /// Returns the endpoint id to which programs attribute packets from an interface.
    pub(crate) fn id_at(&self, ifindex: u32) -> Result<Option<u32>, DatapathError> {
        let id = self.by_ifindex(ifindex).lookup(&ifindex);
        let id = id.step(|| format!("look for the endpoint of interface {ifindex}"))?;
        Ok(id.filter(|id| *id != 0))
    }

    /// Removes the endpoint id of an interface.
    pub(crate) fn clear_interface(&self, ifindex: u32) -> bpf::Result<()> {
        let map = self.by_ifindex(ifindex);
        // Entries of an array cannot be deleted.
        if ifindex < EP_CONFIG_ENTRIES { map.update(&ifindex, &0) } else { map.delete(&ifindex).map(drop) }
    }

    /// Returns the map that has the entry of an interface: an array for low indexes, a hash for the others.
    fn by_ifindex(&self, ifindex: u32) -> &Map<u32, u32> {
        if ifindex < EP_CONFIG_ENTRIES { self.maps.ep_by_ifindex() } else { self.maps.ep_by_ifindex_hi() }
    }
}

/// A locked endpoint: the permission to change its map entries.
pub(crate) struct LockedEndpoint<'a> {
    table: &'a EndpointTable,
    id: u16,
    _guard: Guard<parking_lot::MutexGuard<'a, ()>>,
}

impl LockedEndpoint<'_> {
    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    /// Returns the settings entry, all zero if there is none.
    pub(crate) fn config(&self) -> EndpointConfig {
        self.table.config(self.id)
    }

    /// Records a settings entry that the kernel has already.
    pub(crate) fn record_config(&self, config: &EndpointConfig) {
        let settings = &mut self.table.state.lock().settings;
        match config.id {
            0 => drop(settings.remove(&self.id)),
            _ => drop(settings.insert(self.id, *config)),
        }
    }

    /// Writes the settings entry, all zero for none.
    pub(crate) fn write_config(&self, config: &EndpointConfig) -> bpf::Result<()> {
        self.table.maps.ep_config().update(&self.id.into(), config)?;
        self.record_config(config);
        Ok(())
    }

    /// Writes the id into the list of ids. Precedes every other write of a new endpoint: a start finds endpoints by
    /// that list, so a crash in between leaves no entry that the next start would miss.
    pub(crate) fn write_id(&self, slot: u32) -> Result<(), DatapathError> {
        let id = self.id;
        self.table.maps.ep_ids().update(&id.into(), &slot).step(|| format!("endpoint {id}: note its id"))
    }

    /// Removes the id from the list of ids: the last step of a deletion.
    pub(crate) fn remove_id(&self) -> bpf::Result<bool> {
        self.table.maps.ep_ids().delete(&self.id.into())
    }

    /// Attributes packets from an interface to the endpoint.
    pub(crate) fn write_interface(&self, ifindex: u32) -> Result<(), DatapathError> {
        let id = self.id;
        let written = self.table.by_ifindex(ifindex).update(&ifindex, &id.into());
        written.step(|| format!("endpoint {id}: write interface {ifindex}"))
    }

    /// Removes the entry of an interface if it is still this endpoint's.
    pub(crate) fn remove_interface(&self, ifindex: u32) -> Result<(), DatapathError> {
        let id = self.id;
        if self.table.id_at(ifindex)? != Some(id.into()) {
            return Ok(());
        }
        self.table.clear_interface(ifindex).step(|| format!("endpoint {id}: remove interface {ifindex}"))
    }

    /// Writes the entries of these addresses.
    pub(crate) fn write_addresses(&self, endpoint: &EndpointDatapath) -> Result<(), DatapathError> {
        let step = || format!("endpoint {}: write addresses", self.id);
        for (key, info) in endpoint.lxc_rows() {
            self.table.maps.lxc().update(&key, &info).step(step)?;
        }
        Ok(())
    }

    /// Removes the entries of addresses that are still this endpoint's.
    pub(crate) fn remove_addresses(&self, endpoint: &EndpointDatapath) -> Result<(), DatapathError> {
        let (lxc, step) = (self.table.maps.lxc(), || format!("endpoint {}: remove addresses", self.id));
        for (key, _) in endpoint.lxc_rows() {
            if lxc.lookup(&key).step(step)?.is_some_and(|entry| entry.lxc_id == self.id) {
                lxc.delete(&key).step(step)?;
            }
        }
        Ok(())
    }

    /// Detaches the endpoint from its interface, which is gone: the kernel may reuse the index for another interface.
    pub(crate) fn detach_interface(&self, config: &EndpointConfig) -> Result<(), DatapathError> {
        self.remove_interface(config.ifindex)?;
        let detached = EndpointConfig { flags: config.flags & !ep_flag::LIVE, ..*config };
        self.write_config(&detached).step(|| format!("endpoint {}: its interface is gone", self.id))?;
        self.table.state.lock().detached.insert(config.ifindex, self.id);
        Ok(())
    }

    /// Removes the record of the detached interface: the endpoint has it again, has another one, or is deleted.
    pub(crate) fn forget_detached(&self) {
        self.table.state.lock().detached.retain(|_, id| *id != self.id);
    }
}
