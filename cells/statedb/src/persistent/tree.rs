//! A persistent weight-balanced search tree: copies share unchanged nodes.
//!
//! Neither side of a node is more than [`DELTA`] times as heavy as the other, where the weight is one more than the
//! number of entries: insertion and removal restore that by at most one rotation a level (Hirai and Yamamoto, "Balancing
//! weight-balanced trees", 2011). Nodes without other owners are changed in place, all others are copied first.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::Arc;

use smallvec::SmallVec;

/// The maximum ratio of the weights of the two sides of a node.
const DELTA: usize = 3;

/// The minimum ratio of the weights of inner and outer grandchild for which a double rotation is needed.
const GAMMA: usize = 2;

/// A tree or nothing.
pub(super) type Link<K, V> = Option<Arc<Node<K, V>>>;

/// An entry with the subtrees of smaller and greater keys.
#[derive(Clone)]
pub(super) struct Node<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    left: Link<K, V>,
    right: Link<K, V>,
    len: usize,
}

/// Returns the number of entries.
pub(super) fn len<K, V>(link: &Link<K, V>) -> usize {
    link.as_ref().map_or(0, |node| node.len)
}

fn weight<K, V>(link: &Link<K, V>) -> usize {
    len(link) + 1
}

pub(super) fn get<'t, K: Borrow<Q>, V, Q: Ord + ?Sized>(
    mut link: &'t Link<K, V>,
    key: &Q,
) -> Option<&'t Node<K, V>> {
    while let Some(node) = link {
        link = match key.cmp(node.key.borrow()) {
            Ordering::Less => &node.left,
            Ordering::Greater => &node.right,
            Ordering::Equal => return Some(node),
        };
    }
    None
}

/// Sets the value of a key; returns the previous one.
pub(super) fn insert<K: Ord + Clone, V: Clone>(link: &mut Link<K, V>, key: K, value: V) -> Option<V> {
    let Some(shared) = link else {
        *link = Some(Arc::new(Node { key, value, left: None, right: None, len: 1 }));
        return None;
    };
    let node = Arc::make_mut(shared);
    let old = match key.cmp(&node.key) {
        Ordering::Less => insert(&mut node.left, key, value),
        Ordering::Greater => insert(&mut node.right, key, value),
        Ordering::Equal => return Some(std::mem::replace(&mut node.value, value)),
    };
    if old.is_none() && !node.update_len() {
        rotate(link);
    }
    old
}

/// Removes an entry. The caller checks first that it exists: the nodes on the path are copied during the search.
pub(super) fn remove<K: Borrow<Q> + Clone, V: Clone, Q: Ord + ?Sized>(
    link: &mut Link<K, V>,
    key: &Q,
) -> Option<V> {
    let node = Arc::make_mut(link.as_mut()?);
    let removed = match key.cmp(node.key.borrow()) {
        Ordering::Less => remove(&mut node.left, key)?,
        Ordering::Greater => remove(&mut node.right, key)?,
        Ordering::Equal => match remove_first(&mut node.right) {
            Some((next, value)) => {
                node.key = next;
                std::mem::replace(&mut node.value, value)
            }
            None => {
                let value = node.value.clone();
                *link = node.left.take();
                return Some(value);
            }
        },
    };
    if !node.update_len() {
        rotate(link);
    }
    Some(removed)
}

fn remove_first<K: Clone, V: Clone>(link: &mut Link<K, V>) -> Option<(K, V)> {
    let node = Arc::make_mut(link.as_mut()?);
    match remove_first(&mut node.left) {
        None => {
            let first = (node.key.clone(), node.value.clone());
            *link = node.right.take();
            Some(first)
        }
        first => {
            if !node.update_len() {
                rotate(link);
            }
            first
        }
    }
}

impl<K, V> Node<K, V> {
    /// Updates the number of entries after a change below; returns false if one side has become too heavy.
    fn update_len(&mut self) -> bool {
        let (left, right) = (weight(&self.left), weight(&self.right));
        self.len = left + right - 1;
        left <= DELTA * right && right <= DELTA * left
    }
}

/// Restores the balance: makes the heavier side the top, by a single or a double rotation.
fn rotate<K: Clone, V: Clone>(link: &mut Link<K, V>) {
    let Some(shared) = link else { return };
    let node = Arc::make_mut(shared);
    if weight(&node.right) > weight(&node.left) {
        if let Some(side) = &node.right
            && weight(&side.left) >= GAMMA * weight(&side.right)
        {
            rotate_right(&mut node.right);
        }
        rotate_left(link);
    } else {
        if let Some(side) = &node.left
            && weight(&side.right) >= GAMMA * weight(&side.left)
        {
            rotate_left(&mut node.left);
        }
        rotate_right(link);
    }
}

/// Makes the right side the top.
fn rotate_left<K: Clone, V: Clone>(link: &mut Link<K, V>) {
    let Some(mut top) = link.take() else { return };
    let old = Arc::make_mut(&mut top);
    if let Some(mut side) = old.right.take() {
        let new = Arc::make_mut(&mut side);
        old.right = new.left.take();
        old.len = weight(&old.left) + len(&old.right);
        new.len = weight(&new.right) + old.len;
        new.left = Some(top);
        top = side;
    }
    *link = Some(top);
}

/// Makes the left side the top.
fn rotate_right<K: Clone, V: Clone>(link: &mut Link<K, V>) {
    let Some(mut top) = link.take() else { return };
    let old = Arc::make_mut(&mut top);
    if let Some(mut side) = old.left.take() {
        let new = Arc::make_mut(&mut side);
        old.left = new.right.take();
        old.len = weight(&old.right) + len(&old.left);
        new.len = weight(&new.left) + old.len;
        new.right = Some(top);
        top = side;
    }
    *link = Some(top);
}

/// An iterator over entries in order of their keys.
pub(super) struct Walk<'t, K, V> {
    /// The entries to visit, the next one last; each is followed by its right subtree.
    path: SmallVec<[&'t Node<K, V>; 12]>,
}

impl<'t, K, V> Walk<'t, K, V> {
    pub(super) fn all(link: &'t Link<K, V>) -> Self {
        let mut walk = Walk { path: SmallVec::new() };
        walk.descend(link);
        walk
    }

    /// Starts at the first key that is not less.
    pub(super) fn from<Q: Ord + ?Sized>(mut link: &'t Link<K, V>, key: &Q) -> Self
    where
        K: Borrow<Q>,
    {
        let mut walk = Walk { path: SmallVec::new() };
        while let Some(node) = link {
            link = match key.cmp(node.key.borrow()) {
                Ordering::Greater => &node.right,
                Ordering::Less | Ordering::Equal => {
                    walk.path.push(node);
                    &node.left
                }
            };
        }
        walk
    }

    fn descend(&mut self, mut link: &'t Link<K, V>) {
        while let Some(node) = link {
            self.path.push(node);
            link = &node.left;
        }
    }
}

impl<K, V> Clone for Walk<'_, K, V> {
    fn clone(&self) -> Self {
        Walk { path: self.path.clone() }
    }
}

impl<'t, K, V> Iterator for Walk<'t, K, V> {
    type Item = &'t Node<K, V>;

    fn next(&mut self) -> Option<&'t Node<K, V>> {
        let node = self.path.pop()?;
        self.descend(&node.right);
        Some(node)
    }
}

#[cfg(test)]
pub(super) fn check<K: Ord, V>(link: &Link<K, V>) -> usize {
    let Some(node) = link else { return 0 };
    let (left, right) = (check(&node.left), check(&node.right));
    assert_eq!(node.len, left + right + 1);
    assert!(left < DELTA * (right + 1) && right < DELTA * (left + 1), "{left} and {right} entries");
    node.len
}
