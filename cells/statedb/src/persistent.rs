//! Persistent maps and sets for fields of rows.

mod set;
mod tree;
#[cfg(feature = "untyped")]
mod wire;

use std::borrow::Borrow;
use std::fmt::{Debug, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

pub use set::Set;
use tree::{Link, Walk};

/// An ordered map for a field of a row. Copies share unchanged nodes, so that the cost of a changed copy of a row with
/// ten thousand entries depends on the number of changed entries.
///
/// An update works on a copy of the row; copying the map increments one reference count:
/// ```
/// # use serde::Serialize;
/// # use statedb::{Db, Map, RwTable, Table};
/// #[derive(Clone, Serialize, Table)]
/// #[table(name = "nodes")]
/// struct Node {
///     #[primary]
///     name: String,
///     #[index(multi)]
///     labels: Map<String, String>, // Node::by_labels("zone") finds rows with that key
/// }
/// # let nodes: RwTable<Node> = Db::new().table().unwrap();
/// # nodes.transact(|w| w.insert(Node { name: "a".into(), labels: Map::new() }));
/// nodes.transact(|w| w.update(Node::by_name("a"), |node| drop(node.labels.insert("zone".into(), "b".into()))));
/// # let snapshot = nodes.snapshot();
/// assert_eq!(nodes.get(&snapshot, Node::by_labels("zone")).unwrap().labels.get("zone").unwrap(), "b");
/// ```
///
/// It serializes to JSON and YAML as a list of `{k: .., v: ..}` in order of keys; such a
/// list in any order, or null, deserializes.
///
/// **Cost.** `clone` O(1), `get` O(log n). `insert` and `remove` O(log n): they copy the nodes on the path, with their
/// keys and values, unless no other map shares these nodes, so keep large keys and values behind `Arc`. A node is one
/// allocation of 40 bytes beside key and value; a map of one entry is one node, an empty one none. Iteration O(1) for
/// each entry.
pub struct Map<K, V> {
    root: Link<K, V>,
}

impl<K, V> Map<K, V> {
    /// Returns an empty map.
    pub const fn new() -> Self {
        Map { root: None }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        tree::len(&self.root)
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Returns all entries in order of keys.
    pub fn iter(&self) -> MapIter<'_, K, V> {
        MapIter(Walk::all(&self.root))
    }

    /// Returns all keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> + Clone {
        self.iter().map(|(key, _)| key)
    }

    /// Returns all values in order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> + Clone {
        self.iter().map(|(_, value)| value)
    }

    /// Returns the value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        tree::get(&self.root, key).map(|node| &node.value)
    }

    /// Returns whether the map has the key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        tree::get(&self.root, key).is_some()
    }

    /// Returns the entries whose key is equal or greater.
    pub fn lower_bound<Q: Ord + ?Sized>(&self, key: &Q) -> MapIter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        MapIter(Walk::from(&self.root, key))
    }

    /// Returns the entries whose key starts with this.
    pub fn prefix<'m>(&'m self, start: &'m str) -> impl Iterator<Item = (&'m K, &'m V)> + Clone
    where
        K: Borrow<str>,
    {
        self.lower_bound(start).take_while(move |(key, _)| (*key).borrow().starts_with(start))
    }

    /// Returns whether both are unchanged copies of one map. O(1), in contrast to `==`; equal maps may return false.
    fn is(&self, other: &Self) -> bool {
        match (&self.root, &other.root) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }
}

impl<K: Ord + Clone, V: Clone> Map<K, V> {
    /// Sets the value of a key; returns the previous one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        tree::insert(&mut self.root, key, value)
    }

    /// Removes an entry; returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if !self.contains_key(key) {
            return None;
        }
        tree::remove(&mut self.root, key)
    }

    /// Returns the entries of both maps; for keys in both, the value of `other`. O(m log n), with m entries in the
    /// smaller one.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        if self.is(other) {
            return self.clone();
        }
        if self.len() > other.len() {
            let mut all = self.clone();
            all.extend(other.iter().map(|(key, value)| (key.clone(), value.clone())));
            return all;
        }
        let mut all = other.clone();
        for (key, value) in self {
            if !all.contains_key(key) {
                all.insert(key.clone(), value.clone());
            }
        }
        all
    }

    /// Returns the entries whose key is not in the other map. O(n log m).
    #[must_use]
    pub fn difference<W>(&self, other: &Map<K, W>) -> Self {
        let mut rest = self.clone();
        for key in self.keys().filter(|key| other.contains_key(*key)) {
            rest.remove(key);
        }
        rest
    }
}

/// An iterator over the entries of a [`Map`], in order of keys.
pub struct MapIter<'m, K, V>(Walk<'m, K, V>);

impl<K, V> std::fmt::Debug for MapIter<'_, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MapIter").finish_non_exhaustive()
    }
}

impl<'m, K, V> Iterator for MapIter<'m, K, V> {
    type Item = (&'m K, &'m V);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|node| (&node.key, &node.value))
    }
}

impl<K, V> Clone for MapIter<'_, K, V> {
    fn clone(&self) -> Self {
        MapIter(self.0.clone())
    }
}

impl<'m, K, V> IntoIterator for &'m Map<K, V> {
    type Item = (&'m K, &'m V);
    type IntoIter = MapIter<'m, K, V>;

    fn into_iter(self) -> MapIter<'m, K, V> {
        self.iter()
    }
}

impl<K, V> Clone for Map<K, V> {
    fn clone(&self) -> Self {
        Map { root: self.root.clone() }
    }
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Map::new()
    }
}

impl<K: Ord + Clone, V: Clone> Extend<(K, V)> for Map<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Ord + Clone, V: Clone> FromIterator<(K, V)> for Map<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Map::new();
        map.extend(entries);
        map
    }
}

impl<K: Ord + Clone, V: Clone, const N: usize> From<[(K, V); N]> for Map<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

/// Unchanged copies of one map compare equal in O(1), others are compared entry by entry.
impl<K: PartialEq, V: PartialEq> PartialEq for Map<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.is(other) || self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<K: Eq, V: Eq> Eq for Map<K, V> {}

impl<K: Hash, V: Hash> Hash for Map<K, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len().hash(state);
        self.iter().for_each(|entry| entry.hash(state));
    }
}

impl<K: Debug, V: Debug> Debug for Map<K, V> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

#[cfg(test)]
#[path = "persistent/tests.rs"]
mod tests;
