//! Backends in the kernel: their ids by address, and the frontends that use them.

use std::collections::BTreeSet;
use std::sync::Arc;

use smallvec::SmallVec;
use statedb::Obj;

use crate::lbmap::rows::{BackendValue, Family, Key, Value, kernel_state};
use crate::model::address::{LbAddress, Protocol};
use crate::model::backend::{Backend, BackendState};
use crate::model::fast_map::{FastMap, FastSet};
use crate::reconciler::ids::Ids;

/// The backends of all frontends. An address has one id, shared by all its users.
#[derive(Debug)]
pub(crate) struct Backends {
    ids: Ids,
    by_address: FastMap<LbAddress, u32>,
    /// Ids of zones, of the backends whose zone has one.
    zones: FastMap<LbAddress, u8>,
    used: FastMap<u32, Used>,
    /// Entries that are unused and still to be deleted.
    orphans: BTreeSet<Key>,
    /// Backends whose entries may need another state, because a frontend has released them.
    changed: BTreeSet<u32>,
    /// The backends of announced updates: one that loses its last user is kept for the next update.
    announced: Announced,
    /// Backends without users that are kept because an announced update uses them.
    awaited: Vec<u32>,
}

/// Backends of announced updates.
#[derive(Debug, Default)]
struct Announced {
    lists: Vec<Arc<[Obj<Backend>]>>,
    /// Their addresses, computed on the first use.
    addresses: Option<FastSet<LbAddress>>,
}

impl Announced {
    fn has(&mut self, address: &LbAddress) -> bool {
        if self.lists.is_empty() {
            return false;
        }
        let lists = &self.lists;
        let of_lists = || lists.iter().flat_map(|list| list.iter()).map(|backend| backend.address).collect();
        self.addresses.get_or_insert_with(of_lists).contains(address)
    }
}

#[derive(Debug)]
struct Used {
    address: LbAddress,
    /// Whether the map entry may differ.
    stale: bool,
    /// Ids of its frontends, each with the state of the backend for it.
    by: SmallVec<[(u16, BackendState); 2]>,
}

impl Used {
    fn new(address: LbAddress) -> Used {
        Used { address, stale: true, by: SmallVec::new() }
    }

    /// Returns the best state that it has for any frontend.
    fn state(&self) -> Option<BackendState> {
        self.by.iter().map(|(_, state)| *state).min()
    }

    fn hold(&mut self, frontend: u16, state: BackendState) {
        if self.by.contains(&(frontend, state)) {
            return;
        }
        let before = self.state();
        match self.by.iter_mut().find(|(by, _)| *by == frontend) {
            Some((_, before)) => *before = state,
            None => self.by.push((frontend, state)),
        }
        self.stale |= before != self.state();
    }
}

/// The use of a backend by a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) id: u32,
    /// Whether its entry must be written, or may have to be.
    pub(crate) stale: bool,
}

/// The error when all ids are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no number is left for another {0}; delete services")]
pub(crate) struct IdsExhausted(pub(crate) &'static str);

impl Backends {
    pub(crate) fn new() -> Backends {
        Backends {
            ids: Ids::new(u32::MAX - 1),
            by_address: FastMap::default(),
            zones: FastMap::default(),
            used: FastMap::default(),
            orphans: BTreeSet::new(),
            changed: BTreeSet::new(),
            announced: Announced::default(),
            awaited: Vec::new(),
        }
    }

    /// Announces the backends of the following updates. Costs nothing per backend unless one loses its last user
    /// before.
    pub(crate) fn announce(&mut self, lists: impl Iterator<Item = Arc<[Obj<Backend>]>>) {
        self.announced = Announced { lists: lists.collect(), addresses: None };
    }

    /// Ends the effect of [`announce`](Self::announce); true if any backend is left without a user.
    pub(crate) fn drop_awaited(&mut self) -> bool {
        self.announced = Announced::default();
        let unused = |used: &Used| used.by.is_empty();
        let mut any = false;
        for id in std::mem::take(&mut self.awaited) {
            if self.used.get(&id).is_some_and(unused) {
                self.drop_unused(id);
                any = true;
            }
        }
        any
    }

    /// Restores an entry of the previous run. Of two entries with one address the first is used for new users.
    pub(crate) fn restore(&mut self, id: u32, row: BackendValue) {
        let address = row.address;
        if self.ids.reserve(id) {
            self.set_zone(address, row.zone);
            self.by_address.entry(address).or_insert(id);
            self.used.insert(id, Used::new(address));
        }
    }

    /// Sets the zone of a backend, 0 for one without an id.
    pub(crate) fn set_zone(&mut self, address: LbAddress, zone: u8) {
        let before = match zone {
            0 => self.zones.remove(&address),
            zone => self.zones.insert(address, zone),
        };
        if before.unwrap_or(0) != zone
            && let Some(used) = self.by_address.get(&address).and_then(|id| self.used.get_mut(id))
        {
            used.stale = true;
        }
    }

    /// Whether any backend is in a zone with an id.
    pub(crate) fn has_zones(&self) -> bool {
        !self.zones.is_empty()
    }

    /// Returns the ids of backends.
    pub(crate) fn ids(&mut self) -> &mut Ids {
        &mut self.ids
    }

    /// Records that an id occurs in the maps, so that it is not assigned soon.
    pub(crate) fn seen(&mut self, id: u32) {
        self.ids.seen(id);
    }

    pub(crate) fn id(&self, address: &LbAddress) -> Option<u32> {
        self.by_address.get(address).copied()
    }

    /// Makes the frontend a user of the backend; assigns an id if needed.
    pub(crate) fn hold(
        &mut self,
        address: LbAddress,
        frontend: u16,
        state: BackendState,
    ) -> Result<Held, IdsExhausted> {
        let id = match self.by_address.get(&address) {
            Some(id) => *id,
            None => {
                let id = match self.of_any_protocol(address) {
                    Some(id) => id,
                    None => self.ids.take().ok_or(IdsExhausted("backend"))?,
                };
                self.by_address.insert(address, id);
                id
            }
        };
        let used = self.used.entry(id).or_insert_with(|| Used::new(address));
        used.hold(frontend, state);
        Ok(Held { id, stale: used.stale })
    }

    /// Makes the frontend a user of the backend if it has this id; see [`hold`](Self::hold).
    pub(crate) fn hold_known(
        &mut self,
        id: u32,
        address: &LbAddress,
        frontend: u16,
        state: BackendState,
    ) -> Option<Held> {
        let used = self.used.get_mut(&id).filter(|used| used.address == *address)?;
        used.hold(frontend, state);
        Some(Held { id, stale: used.stale })
    }

    /// Records that the maps have the entries of these backends.
    pub(crate) fn written(&mut self, ids: &[u32]) {
        for id in ids {
            if let Some(used) = self.used.get_mut(id) {
                used.stale = false;
            }
        }
    }

    /// Marks an entry as stale that another program has changed.
    pub(crate) fn damaged(&mut self, id: u32) {
        if let Some(used) = self.used.get_mut(&id) {
            used.stale = true;
        }
    }

    /// Returns the id of an entry that did not distinguish protocols, and reassigns it to this backend.
    fn of_any_protocol(&mut self, address: LbAddress) -> Option<u32> {
        let any = LbAddress { protocol: Protocol::Any, ..address };
        let id = *self.by_address.get(&any)?;
        let used = self.used.get_mut(&id).filter(|used| used.by.is_empty())?;
        (used.address, used.stale) = (address, true);
        self.by_address.remove(&any);
        Some(id)
    }

    pub(crate) fn address(&self, id: u32) -> Option<LbAddress> {
        self.used.get(&id).map(|used| used.address)
    }

    /// Makes the frontend a user of a backend of the previous run, by its id; false if there is none. See
    /// [`hold`](Self::hold).
    pub(crate) fn hold_restored(&mut self, id: u32, frontend: u16, state: BackendState) -> bool {
        let Some(used) = self.used.get_mut(&id) else { return false };
        used.hold(frontend, state);
        true
    }

    /// Returns the entry of a backend, with the best state that it has for any frontend.
    pub(crate) fn row(&self, id: u32) -> Option<(Key, Value)> {
        let used = self.used.get(&id)?;
        let value = BackendValue {
            address: used.address,
            state: kernel_state(used.state()?),
            zone: if self.zones.is_empty() { 0 } else { self.zones.get(&used.address).copied().unwrap_or(0) },
        };
        Some((Key::Backend(Family::of(used.address.ip), id), Value::Backend(value)))
    }

    /// Whether this frontend is the only user of the backend.
    pub(crate) fn is_only_of(&self, id: u32, frontend: u16) -> bool {
        self.used.get(&id).is_some_and(|used| used.by.iter().all(|(by, _)| *by == frontend))
    }

    /// Ends the use of the backend by the frontend, whose map entries do not refer to it any more.
    pub(crate) fn release(&mut self, id: u32, frontend: u16) {
        let Some(used) = self.used.get_mut(&id) else { return };
        used.by.retain(|(by, _)| *by != frontend);
        used.stale = true;
        match used.by.is_empty() {
            true if self.announced.has(&used.address) => self.awaited.push(id),
            true => self.drop_unused(id),
            false => _ = self.changed.insert(id),
        }
    }

    fn drop_unused(&mut self, id: u32) {
        let Some(used) = self.used.remove(&id) else { return };
        if self.by_address.get(&used.address) == Some(&id) {
            self.by_address.remove(&used.address);
            self.zones.remove(&used.address);
        }
        self.orphans.insert(Key::Backend(Family::of(used.address.ip), id));
        self.ids.release(id);
    }

    /// Releases the backends of the previous run that no frontend uses.
    pub(crate) fn drop_all_unused(&mut self) {
        let unused: Vec<u32> =
            self.used.iter().filter(|(_, used)| used.by.is_empty()).map(|(id, _)| *id).collect();
        unused.into_iter().for_each(|id| self.drop_unused(id));
    }

    /// Returns the work that releases have left: entries to rewrite, and keys to delete.
    pub(crate) fn left_over(&mut self) -> (Vec<(Key, Value)>, Vec<Key>) {
        // An id that is in use again is not an orphan.
        let used = &self.used;
        self.orphans.retain(|key| !matches!(key, Key::Backend(_, id) if used.contains_key(id)));
        let changed = self.changed.iter().filter_map(|id| self.row(*id)).collect();
        (changed, self.orphans.iter().copied().collect())
    }

    /// Records that this work is done.
    pub(crate) fn flushed(&mut self) {
        self.orphans.clear();
        self.changed.clear();
    }

    /// Whether frontends use the backend of this id and family.
    pub(crate) fn is_used(&self, id: u32, family: Family) -> bool {
        let used = self.used.get(&id).filter(|used| Family::of(used.address.ip) == family);
        used.is_some_and(|used| !used.by.is_empty())
    }

    /// Returns the ids of the frontends that use a backend.
    pub(crate) fn frontends(&self, id: u32) -> impl Iterator<Item = u16> {
        self.used.get(&id).into_iter().flat_map(|used| used.by.iter().map(|(by, _)| *by))
    }

    /// Counts the backends used by frontends for which the predicate is true, and the others; a backend without a
    /// protocol counts in both.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn counts(&self, is_known: impl Fn(u16) -> bool) -> (usize, usize) {
        let is_used = |used: &&Used| used.by.iter().any(|(by, _)| is_known(*by));
        let (used, unused): (Vec<&Used>, Vec<&Used>) = self.used.values().partition(is_used);
        let each = |used: &&Used| if used.address.protocol == Protocol::Any { 3 } else { 1 };
        (used.len(), unused.iter().map(each).sum())
    }

    /// Returns the number of ids in use.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.ids.in_use()
    }
}
