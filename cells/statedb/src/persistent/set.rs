//! The persistent set.

use std::borrow::Borrow;
use std::fmt::{Debug, Formatter};

use super::Map;

/// An ordered set for a field of a row: a [`Map`] without values, at the same cost.
///
/// It serializes to JSON and YAML as a sorted list; a list in any order, or null, deserializes.
#[derive(PartialEq, Eq, Hash)]
pub struct Set<K>(Map<K, ()>);

impl<K> Set<K> {
    /// Returns an empty set.
    pub const fn new() -> Self {
        Set(Map::new())
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all keys in order.
    pub fn iter(&self) -> impl Iterator<Item = &K> + Clone {
        self.0.keys()
    }

    /// Returns whether the set has the key.
    pub fn contains<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.contains_key(key)
    }

    /// Returns the keys that are equal or greater.
    pub fn lower_bound<Q: Ord + ?Sized>(&self, key: &Q) -> impl Iterator<Item = &K> + Clone
    where
        K: Borrow<Q>,
    {
        self.0.lower_bound(key).map(|(key, ())| key)
    }

    /// Returns the keys that start with this.
    pub fn prefix<'m>(&'m self, start: &'m str) -> impl Iterator<Item = &'m K> + Clone
    where
        K: Borrow<str>,
    {
        self.0.prefix(start).map(|(key, ())| key)
    }
}

impl<K: Ord + Clone> Set<K> {
    /// Adds a key; returns false if the set had it already.
    pub fn insert(&mut self, key: K) -> bool {
        !self.contains(&key) && self.0.insert(key, ()).is_none()
    }

    /// Removes a key; returns false if the set did not have it.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.remove(key).is_some()
    }

    /// Returns the keys of both sets. O(m log n), with m keys in the smaller one.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Set(self.0.union(&other.0))
    }

    /// Returns the keys that are not in the other set. O(n log m).
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Set(self.0.difference(&other.0))
    }
}

impl<K> Clone for Set<K> {
    fn clone(&self) -> Self {
        Set(self.0.clone())
    }
}

impl<K> Default for Set<K> {
    fn default() -> Self {
        Set::new()
    }
}

impl<K: Ord + Clone> Extend<K> for Set<K> {
    fn extend<I: IntoIterator<Item = K>>(&mut self, keys: I) {
        for key in keys {
            self.insert(key);
        }
    }
}

impl<K: Ord + Clone> FromIterator<K> for Set<K> {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        let mut set = Set::new();
        set.extend(keys);
        set
    }
}

impl<K: Ord + Clone, const N: usize> From<[K; N]> for Set<K> {
    fn from(keys: [K; N]) -> Self {
        keys.into_iter().collect()
    }
}

impl<K: Debug> Debug for Set<K> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
