//! A map that is nearly always small: a list without spare capacity up to some entries, a tree beyond.

use std::collections::BTreeMap;

/// The largest list: searches and moves in it cost less than a cache miss or two.
const MAX_LIST: usize = 32;

/// A sorted map. A tree of five entries has room for eleven, in several allocations.
#[derive(Debug, Clone)]
pub(crate) enum SmallMap<K, V> {
    List(Vec<(K, V)>),
    Tree(BTreeMap<K, V>),
}

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        SmallMap::List(Vec::new())
    }
}

/// Maps with equal entries are equal in both forms.
impl<K: Ord + Copy, V: PartialEq> PartialEq for SmallMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<K: Ord + Copy, V: Eq> Eq for SmallMap<K, V> {}

impl<K: Ord + Copy, V> SmallMap<K, V> {
    pub(crate) fn len(&self) -> usize {
        match self {
            SmallMap::List(list) => list.len(),
            SmallMap::Tree(tree) => tree.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        match self {
            SmallMap::List(list) => find(list, key).is_ok(),
            SmallMap::Tree(tree) => tree.contains_key(key),
        }
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match self {
            SmallMap::List(list) => find(list, key).ok().map(|at| &mut list[at].1),
            SmallMap::Tree(tree) => tree.get_mut(key),
        }
    }

    /// Inserts an entry; an old value stays. Returns whether there was none.
    pub(crate) fn insert_new(&mut self, key: K, value: V) -> bool {
        match self {
            SmallMap::Tree(tree) => match tree.contains_key(&key) {
                true => false,
                false => tree.insert(key, value).is_none(),
            },
            SmallMap::List(list) => match find(list, &key) {
                Ok(_) => false,
                Err(at) if list.len() < MAX_LIST => {
                    list.insert(at, (key, value));
                    true
                }
                Err(_) => {
                    let mut tree: BTreeMap<K, V> = std::mem::take(list).into_iter().collect();
                    tree.insert(key, value);
                    *self = SmallMap::Tree(tree);
                    true
                }
            },
        }
    }

    /// Removes an entry. Returns whether there was one.
    pub(crate) fn remove(&mut self, key: &K) -> bool {
        match self {
            SmallMap::Tree(tree) => tree.remove(key).is_some(),
            SmallMap::List(list) => match find(list, key) {
                Ok(at) => {
                    list.remove(at);
                    list.shrink_to_fit();
                    true
                }
                Err(_) => false,
            },
        }
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(K, &V) -> bool) {
        match self {
            SmallMap::List(list) => list.retain(|(key, value)| keep(*key, value)),
            SmallMap::Tree(tree) => tree.retain(|key, value| keep(*key, value)),
        }
        self.shrink_to_fit();
    }

    /// Frees spare capacity.
    pub(crate) fn shrink_to_fit(&mut self) {
        if let SmallMap::List(list) = self {
            list.shrink_to_fit();
        }
    }

    /// Iterates over the entries, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        let (list, tree) = match self {
            SmallMap::List(list) => (Some(list), None),
            SmallMap::Tree(tree) => (None, Some(tree)),
        };
        let of_list = list.into_iter().flatten().map(|(key, value)| (*key, value));
        of_list.chain(tree.into_iter().flatten().map(|(key, value)| (*key, value)))
    }
}

fn find<K: Ord, V>(list: &[(K, V)], key: &K) -> Result<usize, usize> {
    list.binary_search_by(|(own, _)| own.cmp(key))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map_in_both_forms(steps in prop::collection::vec((0_u8..80, any::<bool>()), 0..200)) {
            let (mut map, mut model) = (SmallMap::default(), BTreeMap::new());
            for (at, (key, is_insertion)) in steps.into_iter().enumerate() {
                if is_insertion {
                    let is_new = !model.contains_key(&key);
                    model.entry(key).or_insert(at);
                    prop_assert_eq!(map.insert_new(key, at), is_new);
                } else {
                    prop_assert_eq!(map.remove(&key), model.remove(&key).is_some());
                }
                prop_assert!(map.iter().eq(model.iter().map(|(key, value)| (*key, value))));
                prop_assert_eq!(map.len(), model.len());
            }
            map.retain(|key, _| key % 2 == 0);
            model.retain(|key, _| key % 2 == 0);
            prop_assert!(map.iter().eq(model.iter().map(|(key, value)| (*key, value))));
        }
    }
}
