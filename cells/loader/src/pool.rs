//! Policy maps that sit in their slots before an endpoint needs them.
//!
//! Putting a map into `ep_policies` waits for a grace period (8 ms), a batch of 256 for one as well: so maps are put in
//! ahead, and taking one costs two system calls. A slot is never emptied again; its map is.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bpf::{Map, RawMap};
use datapath_abi::{PolicyEntry, PolicyKey};
use maps::Maps;
use tokio::sync::Notify;

use crate::error::{DatapathError, Step};
use crate::slots::Slots;

/// Maps that are kept ready: 2.4 MB.
pub const READY: usize = 256;

/// The policy map of an endpoint.
pub type PolicyMap = Map<PolicyKey, PolicyEntry>;

/// The pool of policy maps of a node.
#[derive(Debug)]
pub struct PolicyPool {
    maps: Arc<Maps>,
    slots: Mutex<Slots>,
    wanted: Notify,
}

impl PolicyPool {
    /// An empty pool.
    pub fn new(maps: Arc<Maps>) -> PolicyPool {
        let limit = datapath_abi::EP_CONFIG_ENTRIES;
        PolicyPool { maps, slots: Mutex::new(Slots::new(limit, READY)), wanted: Notify::new() }
    }

    /// Takes over the slots that have a map, of which endpoints use some.
    pub fn restore(&self, occupied: &BTreeSet<u32>, used: &BTreeSet<u32>) -> Result<(), DatapathError> {
        let free = self.slots().restore(occupied, used);
        let wanted = self.maps.policy_spec(0).layout;
        let mut other = Vec::new();
        for slot in free {
            match self.map(slot)? {
                Some(map) if map.raw().layout() != wanted => other.push(slot),
                Some(map) => map.clear().step(|| format!("empty the policy map in slot {slot}"))?,
                None => {}
            }
        }
        if other.is_empty() { Ok(()) } else { self.put_new(&other) }
    }

    /// An empty map and its slot. Waits for a grace period only if none is ready, and makes some more then: whoever
    /// takes many shall not wait for each.
    pub fn take(&self) -> Result<(u32, PolicyMap), DatapathError> {
        // The guard must not live into the branch that waits.
        let (ready, few) = {
            let mut slots = self.slots();
            (slots.take(), slots.ready() * 2 < READY)
        };
        if few {
            self.wanted.notify_one();
        }
        let slot = match ready {
            Some(slot) => slot,
            None => {
                let reserved = self.slots().reserve(READY / 4);
                let (slot, more) = reserved
                    .split_first()
                    .ok_or(DatapathError::NoSlot { slots: datapath_abi::EP_CONFIG_ENTRIES })?;
                self.put_new(&reserved)?;
                self.slots().add(more.iter().rev().copied());
                *slot
            }
        };
        match self.map(slot)? {
            Some(map) => Ok((slot, map)),
            // Emptied behind our back: the next one.
            None => self.take(),
        }
    }

    /// The map in a slot; `None` if the slot is empty.
    pub fn map(&self, slot: u32) -> Result<Option<PolicyMap>, DatapathError> {
        let id = self.maps.ep_policies().id(slot).step(|| format!("look into policy slot {slot}"))?;
        let Some(id) = id else { return Ok(None) };
        let map = RawMap::open_id(id).and_then(Map::new);
        map.map(Some).step(|| format!("open the policy map in slot {slot}"))
    }

    /// Gives the slot of an endpoint that is gone back; it rests for a second.
    pub fn give_back(&self, slot: u32) {
        self.slots().rest(slot, Instant::now());
        self.wanted.notify_one();
    }

    /// Makes rested slots ready and creates maps when half of them are gone: 8 to 11 ms then, on nobody's path.
    /// Gives how many are ready.
    pub fn tend(&self) -> Result<usize, DatapathError> {
        let rested = self.slots().rested(Instant::now());
        for slot in rested {
            self.empty(slot)?;
            self.slots().add([slot]);
        }
        let missing = self.slots().missing();
        if !missing.is_empty() {
            self.put_new(&missing)?;
            self.slots().add(missing.into_iter().rev());
        }
        Ok(self.slots().ready())
    }

    /// Resolves when [`PolicyPool::tend`] has something to do, now or after the rest of a slot.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Whether [`PolicyPool::tend`] will have something to do soon.
    pub fn any_resting(&self) -> bool {
        self.slots().any_resting()
    }

    /// How many slots are ready.
    pub fn ready(&self) -> usize {
        self.slots().ready()
    }

    fn put_new(&self, slots: &[u32]) -> Result<(), DatapathError> {
        let spec = self.maps.policy_spec(0).named("cilium_policy_v2");
        let made: bpf::Result<Vec<RawMap>> = slots.iter().map(|_| RawMap::create(&spec)).collect();
        let made = made.step(|| format!("create {} policy maps", slots.len()))?;
        let pairs = slots.iter().zip(&made).map(|(slot, map)| (*slot, map.as_fd()));
        self.maps
            .ep_policies()
            .set_batch(pairs)
            .step(|| format!("put {} policy maps into slots", slots.len()))
    }

    fn empty(&self, slot: u32) -> Result<(), DatapathError> {
        match self.map(slot)? {
            Some(map) => map.clear().step(|| format!("empty the policy map in slot {slot}")),
            None => Ok(()),
        }
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
