//! The set.

use std::borrow::Borrow;
use std::fmt::{Debug, Formatter};

use super::Map;

/// An ordered set for a field of a row: a [`Map`] without values, at the same cost.
///
/// As JSON and YAML it is a list in order; a list in any order, or null, is read.
#[derive(PartialEq, Eq, Hash)]
pub struct Set<K>(Map<K, ()>);

impl<K> Set<K> {
    /// An empty set.
    pub const fn new() -> Self {
        Set(Map::new())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All in order.
    pub fn iter(&self) -> impl Iterator<Item = &K> + Clone {
        self.0.keys()
    }

    /// Whether it is there.
    pub fn contains<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.contains_key(key)
    }

    /// From the first on that is this or greater.
    pub fn lower_bound<Q: Ord + ?Sized>(&self, key: &Q) -> impl Iterator<Item = &K> + Clone
    where
        K: Borrow<Q>,
    {
        self.0.lower_bound(key).map(|(key, ())| key)
    }

    /// Those that start with this.
    pub fn prefix<'m>(&'m self, start: &'m str) -> impl Iterator<Item = &'m K> + Clone
    where
        K: Borrow<str>,
    {
        self.0.prefix(start).map(|(key, ())| key)
    }
}

impl<K: Ord + Clone> Set<K> {
    /// Adds one; false if it is there already.
    pub fn insert(&mut self, key: K) -> bool {
        !self.contains(&key) && self.0.insert(key, ()).is_none()
    }

    /// Takes one out; false if it is not there.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.remove(key).is_some()
    }

    /// Those of both. O(m log n), m in the smaller one.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Set(self.0.union(&other.0))
    }

    /// Those that the other has not. O(n log m).
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
