//! Backends in the kernel: their ids by address, the frontends that use them, and the copies of their entries.

use std::collections::BTreeSet;
use std::sync::Arc;

use statedb::Obj;

use crate::lbmap::rows::{BackendValue, Family, Key, Value, backend_state, kernel_state};
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
    /// Copies of entries that are not those of a backend in use: of its id in another family, with another address, or
    /// to be deleted. `None` for one that may exist.
    strays: FastMap<(Family, u32), Option<BackendValue>>,
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

/// A user: the id of a frontend, and the state of the backend for it.
type User = (u16, BackendState);

/// The copy of a backend's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copied {
    Missing,
    /// It may exist.
    Unsure,
    /// An entry with the address of the backend.
    Row {
        state: u8,
        zone: u8,
    },
}

#[derive(Debug)]
struct Used {
    address: LbAddress,
    /// Whether the map entry may differ.
    stale: bool,
    copied: Copied,
    /// The first user, of frontend 0 if there is none. Most backends have one.
    first: User,
    /// The others; boxed because a vector is three times as large.
    #[expect(clippy::box_collection, reason = "most backends have none, and there are many")]
    more: Option<Box<Vec<User>>>,
}

/// The user of a backend without any.
const NO_USER: User = (0, BackendState::Maintenance);

const _: () = assert!(size_of::<(u32, Used)>() == 48);

impl Used {
    fn new(address: LbAddress) -> Used {
        Used { address, stale: true, copied: Copied::Missing, first: NO_USER, more: None }
    }

    fn users(&self) -> impl Iterator<Item = User> {
        let first = (self.first.0 != 0).then_some(self.first);
        first.into_iter().chain(self.more.iter().flat_map(|more| more.iter().copied()))
    }

    fn is_unused(&self) -> bool {
        self.first.0 == 0
    }

    /// Returns the best state that it has for any frontend.
    fn state(&self) -> Option<BackendState> {
        self.users().map(|(_, state)| state).min()
    }

    fn hold(&mut self, frontend: u16, state: BackendState) {
        if self.first == (frontend, state) {
            return;
        }
        let before = self.state();
        let more = self.more.iter_mut().flat_map(|more| more.iter_mut());
        let mut users = std::iter::once(&mut self.first).chain(more);
        match users.find(|(by, _)| *by == frontend || *by == 0) {
            Some(user) => *user = (frontend, state),
            None => self.more.get_or_insert_default().push((frontend, state)),
        }
        self.stale |= before != self.state();
    }

    fn release(&mut self, frontend: u16) {
        if let Some(more) = &mut self.more {
            more.retain(|(by, _)| *by != frontend);
            if self.first.0 == frontend {
                self.first = more.pop().unwrap_or(NO_USER);
            }
            if more.is_empty() {
                self.more = None;
            }
        } else if self.first.0 == frontend {
            self.first = NO_USER;
        }
        self.stale = true;
    }

    fn family(&self) -> Family {
        Family::of(self.address.ip)
    }

    fn copied(&self) -> Option<Option<BackendValue>> {
        match self.copied {
            Copied::Missing => None,
            Copied::Unsure => Some(None),
            Copied::Row { state, zone } => Some(Some(BackendValue { address: self.address, state, zone })),
        }
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

impl Default for Backends {
    fn default() -> Backends {
        Backends {
            ids: Ids::new(u32::MAX - 1),
            by_address: FastMap::default(),
            zones: FastMap::default(),
            used: FastMap::default(),
            strays: FastMap::default(),
            orphans: BTreeSet::new(),
            changed: BTreeSet::new(),
            announced: Announced::default(),
            awaited: Vec::new(),
        }
    }
}

impl Backends {
    /// Announces the backends of the following updates. Costs nothing per backend unless one loses its last user
    /// before.
    pub(crate) fn announce(&mut self, lists: impl Iterator<Item = Arc<[Obj<Backend>]>>) {
        self.announced = Announced { lists: lists.collect(), addresses: None };
    }

    /// Ends the effect of [`announce`](Self::announce); true if any backend is left without a user.
    pub(crate) fn drop_awaited(&mut self) -> bool {
        self.announced = Announced::default();
        let mut any = false;
        for id in std::mem::take(&mut self.awaited) {
            if self.used.get(&id).is_some_and(Used::is_unused) {
                self.drop_unused(id);
                any = true;
            }
        }
        any
    }

    /// Restores an entry of the previous run. Of two entries with one address the first is used for new users.
    pub(crate) fn restore(&mut self, family: Family, id: u32, row: BackendValue) {
        let address = row.address;
        if self.ids.reserve(id) {
            self.set_zone(address, row.zone);
            self.by_address.entry(address).or_insert(id);
            self.used.insert(id, Used::new(address));
        }
        self.set_copied(family, id, Some(row));
    }

    /// Returns the copy of an entry, or `Some(None)` if it may exist.
    pub(crate) fn copied(&self, family: Family, id: u32) -> Option<Option<BackendValue>> {
        let used = self.used.get(&id).filter(|used| used.family() == family);
        used.and_then(Used::copied).or_else(|| match self.strays.is_empty() {
            true => None,
            false => self.strays.get(&(family, id)).copied(),
        })
    }

    /// Sets the copy of an entry; returns the copy before.
    pub(crate) fn set_copied(
        &mut self,
        family: Family,
        id: u32,
        value: Option<BackendValue>,
    ) -> Option<Option<BackendValue>> {
        let used = self.used.get_mut(&id).filter(|used| used.family() == family);
        if let Some(used) = used {
            let before = used.copied();
            used.copied = match value {
                None => Copied::Unsure,
                Some(BackendValue { address, state, zone }) if address == used.address => {
                    Copied::Row { state, zone }
                }
                Some(_) => Copied::Missing,
            };
            if used.copied != Copied::Missing {
                let stray = if self.strays.is_empty() { None } else { self.strays.remove(&(family, id)) };
                return before.or(stray);
            }
            return before.or(self.strays.insert((family, id), value));
        }
        self.strays.insert((family, id), value)
    }

    /// Removes the copy of an entry; returns it.
    pub(crate) fn remove_copied(&mut self, family: Family, id: u32) -> Option<Option<BackendValue>> {
        let mut before = None;
        if let Some(used) = self.used.get_mut(&id).filter(|used| used.family() == family) {
            before = used.copied();
            used.copied = Copied::Missing;
        }
        before.or(self.strays.remove(&(family, id)))
    }

    /// Iterates over the copies of all entries.
    pub(crate) fn all_copied(&self) -> impl Iterator<Item = (Key, Option<Value>)> {
        let used = self.used.iter().filter_map(|(id, used)| Some((used.family(), *id, used.copied()?)));
        let strays = self.strays.iter().map(|((family, id), value)| (*family, *id, *value));
        used.chain(strays).map(|(family, id, value)| (Key::Backend(family, id), value.map(Value::Backend)))
    }

    /// Returns the state in the entry of a backend of the previous run.
    pub(crate) fn restored_state(&self, id: u32) -> Option<BackendState> {
        let copied = |family| self.copied(family, id).flatten();
        let row = copied(Family::V4).or_else(|| copied(Family::V6))?;
        Some(backend_state(row.state))
    }

    pub(crate) fn reserve(&mut self, count: usize) {
        self.used.reserve(count);
        self.by_address.reserve(count);
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
        let used = self.used.get_mut(&id).filter(|used| used.is_unused())?;
        let copied = used.copied();
        (used.address, used.stale, used.copied) = (address, true, Copied::Missing);
        if let Some(value) = copied {
            self.strays.insert((Family::of(address.ip), id), value);
        }
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
        Some((Key::Backend(used.family(), id), Value::Backend(value)))
    }

    /// Whether this frontend is the only user of the backend.
    pub(crate) fn is_only_of(&self, id: u32, frontend: u16) -> bool {
        self.used.get(&id).is_some_and(|used| used.users().all(|(by, _)| by == frontend))
    }

    /// Ends the use of the backend by the frontend, whose map entries do not refer to it any more.
    pub(crate) fn release(&mut self, id: u32, frontend: u16) {
        let Some(used) = self.used.get_mut(&id) else { return };
        used.release(frontend);
        match used.is_unused() {
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
        if let Some(value) = used.copied() {
            self.strays.insert((used.family(), id), value);
        }
        self.orphans.insert(Key::Backend(used.family(), id));
        self.ids.release(id);
    }

    /// Releases the backends of the previous run that no frontend uses.
    pub(crate) fn drop_all_unused(&mut self) {
        let unused: Vec<u32> =
            self.used.iter().filter(|(_, used)| used.is_unused()).map(|(id, _)| *id).collect();
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
        self.used.get(&id).is_some_and(|used| used.family() == family && !used.is_unused())
    }

    /// Returns the ids of the frontends that use a backend.
    pub(crate) fn frontends(&self, id: u32) -> impl Iterator<Item = u16> {
        self.used.get(&id).into_iter().flat_map(|used| used.users().map(|(by, _)| by))
    }

    /// Counts the backends used by frontends for which the predicate is true, and the others; a backend without a
    /// protocol counts in both.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn counts(&self, is_known: impl Fn(u16) -> bool) -> (usize, usize) {
        let is_used = |used: &&Used| used.users().any(|(by, _)| is_known(by));
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
