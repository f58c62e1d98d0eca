//! Policy maps that are placed in their slots before an endpoint needs them.
//!
//! Inserting a map into `ep_policies` waits for an RCU grace period (8 ms), as does a batch of 256. So maps are
//! inserted in advance, and taking one costs three system calls. The slot of a deleted endpoint keeps its map, emptied;
//! maps that exceed the reserve for a while are destroyed.
//!
//! A lookup in a map of maps returns the id of a map, and only `CAP_SYS_ADMIN` may open a map by id. So each map has a
//! pin for its slot in a separate folder, created before the map is inserted into the slot, and maps of endpoints are
//! kept open as well: another process may remove the pins while the maps are in use.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bpf::{Map, RawMap, names_in, unpin};
use datapath_abi::{PolicyEntry, PolicyKey};
use maps::Maps;
use parking_lot::MutexGuard;
use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;

use crate::endpoints::lock_order::{Guard, Mutex, Rank};
use crate::endpoints::slots::{Reserve, Slots};
use datapath_api::{DatapathError, Step};

/// Number of maps that are kept ready once pods are created: 2.4 MB.
pub const READY: usize = 256;

/// Number of maps that a start makes ready, and the batch of refills: fewer are taken during one grace period.
pub const READY_FIRST: usize = 64;

/// Maximum number of maps destroyed in a row, 8 ms each: pods that need new ones meanwhile must not wait longer.
const DESTROY_BATCH: usize = 32;

/// The policy map of an endpoint.
pub type PolicyMap = Map<PolicyKey, PolicyEntry>;

/// The pool of policy maps of a node.
#[derive(Debug)]
pub struct PolicyPool {
    maps: Arc<Maps>,
    slots: Mutex<Slots>,
    /// The maps of assigned slots, a descriptor each.
    assigned: Mutex<BTreeMap<u32, Arc<PolicyMap>>>,
    /// Maximum number of maps that are open at once while they are created.
    batch: usize,
    wanted: Notify,
}

impl PolicyPool {
    /// Creates an empty pool.
    pub fn new(maps: Arc<Maps>) -> PolicyPool {
        let reserve = Reserve { first: READY_FIRST, grown: READY };
        let slots = Slots::new(datapath_abi::EP_CONFIG_ENTRIES, reserve);
        // Leave most file descriptors to the rest of the agent.
        let limit = getrlimit(Resource::Nofile).current.map_or(READY_FIRST, |limit| limit as usize / 16);
        PolicyPool {
            maps,
            slots: Mutex::new(Rank::State, slots),
            assigned: Mutex::new(Rank::State, BTreeMap::new()),
            batch: limit.clamp(1, READY_FIRST),
            wanted: Notify::new(),
        }
    }

    /// Opens the map of a restored endpoint's slot: by the slot's pin, else by the endpoint's pin.
    /// Returns false if neither refers to the map with that id, which cannot be opened then.
    pub(crate) fn restore_map(
        &self,
        slot: u32,
        id: u32,
        pinned: Option<&RawMap>,
    ) -> Result<bool, DatapathError> {
        let step = || format!("take over the policy map in slot {slot}");
        let map = match (self.open(slot, id)?, pinned.filter(|map| map.id() == id)) {
            (Some(map), _) => map,
            (None, Some(map)) => {
                self.pin(slot, map)?;
                map.try_clone().and_then(Map::new).step(step)?
            }
            (None, None) => return Ok(false),
        };
        self.assigned().insert(slot, Arc::new(map));
        Ok(true)
    }

    /// Restores the slots that have a map, of which endpoints use some. Maps that cannot be opened or have another
    /// layout are replaced.
    pub fn restore(&self, occupied: &BTreeSet<u32>, used: &BTreeSet<u32>) -> Result<(), DatapathError> {
        for slot in self.pins()?.into_iter().filter(|slot| !occupied.contains(slot)) {
            unpin(&self.path(slot)).step(|| format!("remove the pin of slot {slot}"))?;
        }
        let free = self.slots().restore(occupied, used);
        let desired = self.maps.policy_spec(0).layout;
        let mut unusable = Vec::new();
        for slot in free {
            let id = self.id(slot)?.unwrap_or_default();
            match self.open(slot, id)?.filter(|map| map.raw().layout() == desired) {
                Some(map) => map.clear().step(|| format!("empty the policy map in slot {slot}"))?,
                None => unusable.push(slot),
            }
        }
        self.put_new(&unusable)
    }

    /// Takes an empty map and its slot. Waits for a grace period only if none is ready, and then creates a batch, so
    /// that a caller that takes many does not wait for each.
    pub fn take(&self) -> Result<(u32, Arc<PolicyMap>), DatapathError> {
        // In a block, so that the guard is dropped before the branch that waits for the kernel.
        let (ready, few) = {
            let mut slots = self.slots();
            (slots.take(), slots.are_few())
        };
        if few {
            self.wanted.notify_one();
        }
        let slot = match ready {
            Some(slot) => slot,
            None => {
                let reserved = self.slots().reserve(READY_FIRST);
                let (slot, more) = reserved
                    .split_first()
                    .ok_or(DatapathError::NoSlot { slots: datapath_abi::EP_CONFIG_ENTRIES })?;
                self.fill(&reserved)?;
                self.slots().add(more.iter().rev().copied());
                *slot
            }
        };
        let map = match self.map(slot) {
            // Another process has emptied or unpinned it.
            Ok(None) => self.put_new(&[slot]).and_then(|()| self.map(slot)),
            found => found,
        };
        match map {
            Ok(Some(map)) => Ok((slot, map)),
            failed => {
                self.slots().add([slot]);
                failed.and(Err(DatapathError::NoMap { slot }))
            }
        }
    }

    /// Returns the map in a slot; `None` if the slot is empty or its map cannot be opened.
    pub fn map(&self, slot: u32) -> Result<Option<Arc<PolicyMap>>, DatapathError> {
        let Some(id) = self.id(slot)? else { return Ok(None) };
        if let Some(map) = self.assigned().get(&slot).filter(|map| map.raw().id() == id) {
            return Ok(Some(map.clone()));
        }
        let Some(map) = self.open(slot, id)?.map(Arc::new) else { return Ok(None) };
        self.assigned().insert(slot, map.clone());
        Ok(Some(map))
    }

    /// Returns the slot of a deleted endpoint; it stays in quarantine for a second.
    pub fn give_back(&self, slot: u32) {
        self.slots().quarantine(slot, Instant::now());
        self.wanted.notify_one();
    }

    /// Makes slots ready after their quarantine, refills the pool when half of its maps are in use (in batches of 8
    /// to 11 ms, outside of any request), and shrinks it after a while without demand. Returns the number of ready
    /// maps.
    pub fn tend(&self) -> Result<usize, DatapathError> {
        self.tend_at(Instant::now())
    }

    /// [`PolicyPool::tend`] as of a time.
    pub fn tend_at(&self, now: Instant) -> Result<usize, DatapathError> {
        let ended = self.slots().end_quarantine(now);
        for (index, slot) in ended.iter().enumerate() {
            if let Err(error) = self.empty(*slot) {
                ended[index..].iter().for_each(|slot| self.slots().quarantine(*slot, now));
                return Err(error);
            }
            self.slots().add([*slot]);
        }
        let mut few = self.slots().are_few();
        while few {
            let missing = self.slots().missing();
            few = !missing.is_empty();
            self.fill(&missing)?;
            self.slots().add(missing.into_iter().rev());
        }
        self.shrink(now)?;
        Ok(self.slots().ready())
    }

    /// Destroys the maps of some slots beyond the reserve. Emptying a slot waits for a grace period, so a batch is
    /// small.
    fn shrink(&self, now: Instant) -> Result<(), DatapathError> {
        let surplus = self.slots().surplus(now, DESTROY_BATCH);
        for (index, slot) in surplus.iter().enumerate() {
            // Empty the slot first: a crash in between leaves a pin of an empty slot, which the next start removes.
            let destroyed = self
                .maps
                .ep_policies()
                .unset(*slot)
                .and_then(|_| unpin(&self.path(*slot)))
                .step(|| format!("destroy the policy map in slot {slot}"));
            if let Err(error) = destroyed {
                self.slots().add(surplus[index..].iter().copied());
                return Err(error);
            }
            self.assigned().remove(slot);
            self.slots().return_reserved([*slot]);
        }
        Ok(())
    }

    /// Returns the time until [`PolicyPool::tend`] may have surplus maps to destroy.
    pub fn next_shrink(&self) -> Option<Duration> {
        self.slots().next_shrink(Instant::now())
    }

    /// Repins maps that another process has unpinned: maps in use by their open descriptors; maps of the reserve cannot
    /// be opened any more and are replaced. Returns descriptions of the repairs.
    pub(crate) fn repin(&self) -> Result<Vec<String>, DatapathError> {
        let ready: BTreeSet<u32> = self.slots().free().iter().copied().collect();
        let assigned: Vec<_> = self.assigned().iter().map(|(slot, map)| (*slot, map.clone())).collect();
        let pins = self.pins()?;
        let mut done = Vec::new();
        for (slot, map) in assigned {
            // Maps of the reserve are compared when they are taken.
            let is_right = |pinned: RawMap| pinned.id() == map.raw().id();
            if pins.contains(&slot) && RawMap::open(&self.path(slot)).is_ok_and(is_right) {
                continue;
            }
            self.pin(slot, map.raw())?;
            done.push(format!("policy map in slot {slot}"));
        }
        let lost = self.slots().withdraw(|slot| ready.contains(&slot) && !pins.contains(&slot));
        if !lost.is_empty() {
            self.fill(&lost)?;
            done.push(format!("{} policy maps in reserve", lost.len()));
            self.slots().add(lost);
        }
        Ok(done)
    }

    /// Resolves when [`PolicyPool::tend`] has work, now or after the quarantine of a slot.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Whether [`PolicyPool::tend`] will have work at the end of a quarantine.
    pub fn any_quarantined(&self) -> bool {
        self.slots().any_quarantined()
    }

    /// Returns the number of ready slots.
    pub fn ready(&self) -> usize {
        self.slots().ready()
    }

    /// Inserts maps into slots, each pinned before: a crash in between leaves a pin of an empty slot, or a second pin
    /// beside the endpoint's, which still refers to the map in the slot.
    pub(crate) fn put(&self, maps: &[(u32, &RawMap)]) -> Result<(), DatapathError> {
        if maps.is_empty() {
            return Ok(());
        }
        for (slot, map) in maps {
            self.pin(*slot, map)?;
        }
        let pairs = maps.iter().map(|(slot, map)| (*slot, map.as_fd()));
        let step = || format!("put {} policy maps into slots", maps.len());
        self.maps.ep_policies().set_batch(pairs).step(step)
    }

    /// Inserts new maps into slots.
    fn put_new(&self, slots: &[u32]) -> Result<(), DatapathError> {
        let spec = self.maps.policy_spec(0).named("cilium_policy_v2");
        for slots in slots.chunks(self.batch) {
            let made: bpf::Result<Vec<RawMap>> = slots.iter().map(|_| RawMap::create(&spec)).collect();
            let made = made.step(|| format!("create {} policy maps", slots.len()))?;
            self.put(&slots.iter().copied().zip(&made).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// [`PolicyPool::put_new`] for slots without an endpoint: after a failure they may be tried again.
    fn fill(&self, slots: &[u32]) -> Result<(), DatapathError> {
        self.put_new(slots).inspect_err(|_| self.slots().return_reserved(slots.iter().copied()))
    }

    fn empty(&self, slot: u32) -> Result<(), DatapathError> {
        match self.map(slot)? {
            Some(map) => map.clear().step(|| format!("empty the policy map in slot {slot}"))?,
            None => self.put_new(&[slot])?,
        }
        self.assigned().remove(&slot);
        Ok(())
    }

    pub(crate) fn id(&self, slot: u32) -> Result<Option<u32>, DatapathError> {
        self.maps.ep_policies().id(slot).step(|| format!("look into policy slot {slot}"))
    }

    /// Opens the map with that id by the slot's pin; `None` if there is no pin or it refers to another map.
    fn open(&self, slot: u32, id: u32) -> Result<Option<PolicyMap>, DatapathError> {
        let map = match RawMap::open(&self.path(slot)) {
            Err(e) if e.is_not_found() => return Ok(None),
            map => map.step(|| format!("open the policy map in slot {slot}"))?,
        };
        if map.id() != id {
            return Ok(None);
        }
        Map::new(map).map(Some).step(|| format!("open the policy map in slot {slot}"))
    }

    fn pin(&self, slot: u32, map: &RawMap) -> Result<(), DatapathError> {
        let path = self.path(slot);
        match map.pin(&path) {
            Err(e) if e.is_existing() => self.maps.fs().replace_pin(&path, |pending| map.pin(pending)),
            other => other,
        }
        .step(|| format!("pin the policy map in slot {slot}"))
    }

    fn path(&self, slot: u32) -> PathBuf {
        self.maps.fs().policy_maps().join(format!("{PIN}{slot:05}"))
    }

    /// Returns the slots that have a pin.
    fn pins(&self) -> Result<BTreeSet<u32>, DatapathError> {
        let names = names_in(&self.maps.fs().policy_maps()).step(|| "list the pins of slots".to_owned())?;
        Ok(names.iter().filter_map(|name| name.strip_prefix(PIN)?.parse().ok()).collect())
    }

    fn slots(&self) -> Guard<MutexGuard<'_, Slots>> {
        self.slots.lock()
    }

    fn assigned(&self) -> Guard<MutexGuard<'_, BTreeMap<u32, Arc<PolicyMap>>>> {
        self.assigned.lock()
    }
}

/// The prefix of a slot's pin; the slot follows in five digits.
const PIN: &str = "slot_";
