//! Hash tables for keys that are cheap to hash and compare.

use std::collections::{HashMap, HashSet};

/// A hash table for keys that are cheap to hash and compare.
pub(crate) type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// A set of such keys.
pub(crate) type FastSet<K> = HashSet<K, foldhash::fast::RandomState>;
