//! Many watches, waited for together.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::watch::{Listener, Watch};

/// Watches with keys, of which any number may close while somebody waits for the first.
///
/// A watch that closes puts its key on a list, so a [`wait`](WatchSet::wait) costs what has closed, not what is in the
/// set. For those who compute something of many queries and want to know which of them to ask again:
///
/// ```
/// # use std::time::Duration;
/// # use serde::Serialize;
/// # use statedb::{Db, Query, TableSpec, WatchSet};
/// # #[derive(Clone, Serialize)] struct Backend { id: u32, healthy: bool }
/// # impl TableSpec for Backend {
/// #     const NAME: &'static str = "backends";
/// #     type Key<'a> = u32;
/// #     fn key(&self) -> u32 { self.id }
/// #     fn columns() -> &'static [&'static str] { &["ID"] }
/// #     fn row(&self) -> Vec<String> { vec![self.id.to_string()] }
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
/// assert!(changed.contains(&7)); // ask for it again, and add its new watch
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
    /// Weak, since the list may have this.
    ready: Weak<Ready<K>>,
}

/// The keys whose watches have closed, perhaps after they were taken out of the set.
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
    /// A set without watches.
    pub fn new() -> Self {
        let ready = Ready { list: Mutex::default(), notify: Notify::new() };
        WatchSet { entries: HashMap::new(), ready: Arc::new(ready) }
    }

    /// Waits until a watch closes, and from then on for all of `settle`, whatever else happens; takes the keys whose
    /// watches have closed out of the set and gives them, in the order in which they closed.
    ///
    /// A watch that has closed before counts as well. With an empty set it waits until it is cancelled. Cancel safe: what
    /// it does not give stays in the set.
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

    /// Adds a watch, in the place of the one that the key had before.
    pub fn add(&mut self, key: K, watch: Watch) {
        let closing = Arc::new(Closing { key: key.clone(), ready: Arc::downgrade(&self.ready) });
        watch.listen(&closing);
        let old = self.entries.insert(key, Entry { watch, closing });
        self.forget(old);
    }

    /// Takes a key out; whether it was in the set.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let old = self.entries.remove(key);
        let was_there = old.is_some();
        self.forget(old);
        was_there
    }

    /// Whether the key is in the set.
    pub fn has<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.entries.contains_key(key)
    }

    /// Moves all of another set into this one; its watches take the place of those that keys have here.
    pub fn merge(&mut self, other: Self) {
        self.entries.reserve(other.entries.len());
        for (key, entry) in other.entries {
            self.add(key, entry.watch);
        }
    }

    /// Takes all keys out.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.ready.list.lock().clear();
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The keys, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.keys()
    }

    fn nothing_ready(&self) -> bool {
        let mut list = self.ready.list.lock();
        list.retain(|closing| known(&self.entries, closing));
        list.is_empty()
    }

    /// Sees to it that the list does not grow by keys that come, close and go while nobody waits.
    fn forget(&mut self, entry: Option<Entry<K>>) {
        if entry.is_some_and(|entry| entry.watch.is_closed()) {
            let mut list = self.ready.list.lock();
            if list.len() > 2 * self.entries.len() + 16 {
                list.retain(|closing| known(&self.entries, closing));
            }
        }
    }
}

/// Whether what has closed is still in the set.
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
