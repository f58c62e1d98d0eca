//! A set of watches that are waited for together.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::watch::{Listener, Watch};

/// A set of watches by key.
///
/// A watch that closes puts its key on a list, so the cost of a [`wait`](WatchSet::wait) grows with the number of
/// closed watches, not with the size of the set. For results that are computed from many queries, of which only the
/// outdated ones should be repeated:
///
/// ```
/// # use std::time::Duration;
/// # use statedb::{Db, Query, TableSpec, WatchSet};
/// # #[derive(Clone)] struct Backend { id: u32, healthy: bool }
/// # impl TableSpec for Backend {
/// #     const NAME: &'static str = "backends";
/// #     type Key<'a> = u32;
/// #     fn key(&self) -> u32 { self.id }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), statedb::Error> {
/// let backends = Db::new().table::<Backend>()?;
/// let mut set = WatchSet::new();
/// let snapshot = backends.snapshot();
/// for id in 0..1000 {
///     let (backend, watch) = backends.get_watch(&snapshot, Query::primary(id)); // there or not
///     assert!(backend.is_none());
///     set.add(id, watch);
/// }
/// backends.transact(|w| w.insert(Backend { id: 7, healthy: true }));
/// let changed = set.wait(Duration::from_millis(10)).await;
/// assert!(changed.contains(&7)); // query it again, and add its new watch
/// # Ok(())
/// # }
/// ```
pub struct WatchSet<K> {
    entries: HashMap<K, Entry<K>>,
    ready: Arc<Ready<K>>,
}

struct Entry<K> {
    watch: Watch,
    closing: Arc<Closing<K>>,
}

/// The action of a watch when it closes.
struct Closing<K> {
    key: K,
    /// Weak, since the list may hold this: a strong reference would be a cycle.
    ready: Weak<Ready<K>>,
}

/// The keys whose watches have closed; some may have been removed from the set.
struct Ready<K> {
    list: Mutex<Vec<Arc<Closing<K>>>>,
    notify: Notify,
}

impl<K: Send + Sync> Listener for Closing<K> {
    fn closed(self: Arc<Self>) {
        if let Some(ready) = self.ready.upgrade() {
            ready.list.lock().push(self);
            ready.notify.notify_one();
        }
    }
}

impl<K: Clone + Hash + Eq + Send + Sync + 'static> WatchSet<K> {
    /// Creates an empty set.
    pub fn new() -> Self {
        let ready = Ready { list: Mutex::default(), notify: Notify::new() };
        WatchSet { entries: HashMap::new(), ready: Arc::new(ready) }
    }

    /// Waits until a watch closes, and then for the whole duration `settle`, to coalesce further closes; removes the
    /// keys whose watches have closed from the set and returns them, in the order in which they closed.
    ///
    /// A watch that has closed before the call counts as well. With an empty set it waits until it is cancelled. Cancel
    /// safe: keys that it does not return stay in the set.
    pub async fn wait(&mut self, settle: Duration) -> Vec<K> {
        while self.nothing_ready() {
            self.ready.notify.notified().await;
        }
        if !settle.is_zero() {
            tokio::time::sleep(settle).await;
        }
        let closed = std::mem::take(&mut *self.ready.list.lock());
        let mut keys = Vec::with_capacity(closed.len());
        for closing in closed {
            if known(&self.entries, &closing) {
                self.entries.remove(&closing.key);
                keys.push(closing.key.clone());
            }
        }
        keys
    }

    /// Adds a watch; replaces the previous one of the key.
    pub fn add(&mut self, key: K, watch: Watch) {
        let closing = Arc::new(Closing { key: key.clone(), ready: Arc::downgrade(&self.ready) });
        watch.listen(&closing);
        let old = self.entries.insert(key, Entry { watch, closing });
        self.forget(old);
    }

    /// Removes a key; returns whether it was in the set.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let old = self.entries.remove(key);
        let was_there = old.is_some();
        self.forget(old);
        was_there
    }

    /// Returns whether the key is in the set.
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.entries.contains_key(key)
    }

    /// Moves all watches of another set into this one; they replace watches with the same keys.
    pub fn merge(&mut self, other: Self) {
        self.entries.reserve(other.entries.len());
        for (key, entry) in other.entries {
            self.add(key, entry.watch);
        }
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.ready.list.lock().clear();
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the keys, in arbitrary order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.keys()
    }

    fn nothing_ready(&self) -> bool {
        let mut list = self.ready.list.lock();
        list.retain(|closing| known(&self.entries, closing));
        list.is_empty()
    }

    /// Prunes the list after an entry was removed, so that keys that are added, close and are removed between two waits
    /// do not make it grow without bound.
    fn forget(&mut self, entry: Option<Entry<K>>) {
        if entry.is_some_and(|entry| entry.watch.is_closed()) {
            let mut list = self.ready.list.lock();
            if list.len() > 2 * self.entries.len() + 16 {
                list.retain(|closing| known(&self.entries, closing));
            }
        }
    }
}

/// Returns whether a closed watch is still in the set.
fn known<K: Hash + Eq>(entries: &HashMap<K, Entry<K>>, closing: &Arc<Closing<K>>) -> bool {
    entries.get(&closing.key).is_some_and(|entry| Arc::ptr_eq(&entry.closing, closing))
}

impl<K: Clone + Hash + Eq + Send + Sync + 'static> Default for WatchSet<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Clone + Hash + Eq + Send + Sync + 'static> Extend<(K, Watch)> for WatchSet<K> {
    fn extend<I: IntoIterator<Item = (K, Watch)>>(&mut self, watches: I) {
        watches.into_iter().for_each(|(key, watch)| self.add(key, watch));
    }
}

impl<K> std::fmt::Debug for WatchSet<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WatchSet({} keys, {} closed)", self.entries.len(), self.ready.list.lock().len())
    }
}
