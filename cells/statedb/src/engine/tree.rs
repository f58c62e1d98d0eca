//! A persistent map from bytes to leaves.

#![expect(unsafe_code, reason = "versions of a tree share their nodes")]

mod covering;

use super::heap::{Edit, Retired};
use super::leaf::Leaf;
use super::link::{Child, Link, Removed};
use super::node::{NodeMut, NodeRef, PREFIX};
use super::range::Range;
use crate::panics::Panics;
use crate::watch::WatchCell;

/// One version of an index. Reads return references that live as long as the version is borrowed.
pub(crate) struct Tree<L> {
    root: Link<L>,
    len: usize,
}

impl<L> Tree<L> {
    pub(crate) const EMPTY: Self = Tree { root: Link::EMPTY, len: 0 };

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<L: Leaf> Tree<L> {
    /// Returns a copy for the next version.
    ///
    /// # Safety
    /// At most one fork of a version is published; the others are abandoned. Each fork is changed by one edit of its
    /// own, and none outlives the root that holds this version.
    pub(crate) unsafe fn fork(&self) -> Self {
        // JUSTIFICATION: a new version starts as a shallow copy of the previous one.
        // SAFETY: the caller's contract is that of `Link::copy`: one published fork, each with its own birth.
        Tree { root: unsafe { self.root.copy() }, len: self.len }
    }

    // ---- reads

    /// Returns the leaf of a key.
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<&L> {
        let mut link = &self.root;
        let mut depth = 0;
        loop {
            match link.get() {
                Child::Nothing => return None,
                // The descent skips prefixes without comparing them, so the whole key is compared here.
                Child::Leaf(leaf) => return leaf.with_key(|found| same(found, key)).then_some(leaf),
                Child::Node(node) => {
                    depth += node.prefix_len();
                    match key.get(depth) {
                        Some(byte) => {
                            link = node.child(*byte)?;
                            depth += 1;
                        }
                        None if depth == key.len() => link = node.own(),
                        None => return None,
                    }
                }
            }
        }
    }

    /// Returns all leaves in the order of their keys.
    pub(crate) fn all(&self) -> Range<'_, L> {
        Range::below(&self.root)
    }

    /// Returns the leaves whose keys start with `start`.
    pub(crate) fn prefix(&self, start: &[u8]) -> Range<'_, L> {
        match self.descend(start).0 {
            Some(link) => Range::below(link),
            None => Range::empty(),
        }
    }

    /// Returns the leaves with this key or a greater one.
    pub(crate) fn from(&self, key: &[u8]) -> Range<'_, L> {
        Range::from(&self.root, key)
    }

    /// Returns the leaves with keys from `start` (inclusive) to `end` (exclusive).
    pub(crate) fn between(&self, start: &[u8], end: &[u8]) -> Range<'_, L> {
        self.from(start).until(end)
    }

    /// Returns the link to the keys that start with `start`, if there are any, and the deepest node that every insert
    /// and delete of such a key copies.
    fn descend(&self, start: &[u8]) -> (Option<&Link<L>>, Option<NodeRef<'_, L>>) {
        let mut link = &self.root;
        let mut depth = 0;
        let mut covering = None;
        loop {
            match link.get() {
                Child::Nothing => return (None, covering),
                Child::Leaf(leaf) => {
                    return (leaf.with_key(|key| key.starts_with(start)).then_some(link), covering);
                }
                Child::Node(node) => {
                    let rest = &start[depth..];
                    let shared = common(node.prefix(), rest);
                    if shared == rest.len() {
                        return (Some(link), Some(node));
                    }
                    if shared < node.prefix_len() {
                        return (None, covering);
                    }
                    covering = Some(node);
                    match node.child(rest[shared]) {
                        Some(child) => link = child,
                        None => return (None, covering),
                    }
                    depth += shared + 1;
                }
            }
        }
    }

    /// Returns the watch that closes when a key that starts with `start` is inserted, replaced or deleted; none if only
    /// the watch of the whole tree does.
    pub(crate) fn prefix_watch(&self, start: &[u8]) -> Option<&WatchCell> {
        self.descend(start).1.map(NodeRef::watch)
    }

    // ---- writes

    /// Inserts a leaf under its key; returns the leaf that it replaced.
    pub(crate) fn insert(&mut self, edit: &mut Edit, key: &[u8], leaf: L) -> Option<Removed<L>> {
        let mut link = &mut self.root;
        let mut depth = 0;
        loop {
            if let Child::Node(node) = link.get() {
                let rest = &key[depth..];
                let shared = common(node.prefix(), rest);
                if shared < node.prefix_len() {
                    split_prefix(link, edit, shared, rest, leaf);
                    break;
                }
                depth += shared;
                let Some(byte) = key.get(depth) else {
                    link = link.edit(edit).into_own();
                    continue;
                };
                depth += 1;
                if node.child(*byte).is_some() {
                    link = link.edit(edit).into_child(*byte);
                    continue;
                }
                let mut node = link.edit(edit);
                if node.is_full() {
                    node = node.grow();
                    node.add(*byte, Link::leaf(leaf));
                    *link = Link::node(node);
                } else {
                    node.add(*byte, Link::leaf(leaf));
                }
                break;
            }
            let Some(found) = link.as_leaf() else {
                *link = Link::leaf(leaf);
                break;
            };
            let split = found.with_key(|other| {
                let shared = common(&other[depth..], &key[depth..]);
                let equal = depth + shared == key.len() && key.len() == other.len();
                (!equal).then(|| (shared, other.get(depth + shared).copied()))
            });
            let Some((shared, byte)) = split else { return Some(link.replace_leaf(leaf)) };
            split_leaf(link, edit, shared, &key[depth..], byte, leaf);
            break;
        }
        self.len += 1;
        None
    }

    /// Removes the leaf of a key.
    pub(crate) fn remove(&mut self, edit: &mut Edit, key: &[u8]) -> Option<Removed<L>> {
        // Checked first: removing a missing key must not copy nodes.
        self.get(key)?;
        self.len -= 1;
        Some(remove_below(&mut self.root, edit, key))
    }

    // ---- teardown

    /// Frees all nodes and leaves of the edit. The tree is empty afterwards.
    pub(crate) fn abandon(&mut self, birth: u64) {
        self.len = 0;
        let (mut made, mut panics) = (Vec::new(), Panics::default());
        // JUSTIFICATION: an aborted transaction must not leak its allocations.
        // SAFETY: below a node of another birth nothing has this birth, since an edit copies all nodes on the path to
        // a change. Only this tree reaches nodes of this birth, and its root has just been emptied.
        unsafe {
            self.root.take().dismantle(&|other| other == birth, &mut |retired| made.push(retired));
            panics.each(made, |retired| super::roots::Garbage::free(retired));
        }
        panics.resume();
    }

    /// Retires all nodes and leaves.
    ///
    /// # Safety
    /// This version is not forked again, and the entries passed to `each` are freed only after the last root that
    /// reaches them is released.
    pub(crate) unsafe fn dismantle(&self, each: &mut dyn FnMut(Retired)) {
        // JUSTIFICATION: the last handle of the database was dropped, so its nodes have to be freed.
        // SAFETY: by the caller's contract this happens once, and `want` accepts everything.
        unsafe { self.root.copy().dismantle(&|_| true, each) }
    }
}

/// Inserts a parent above a node, because the key shares only the first `shared` bytes of its prefix.
fn split_prefix<L: Leaf>(link: &mut Link<L>, edit: &mut Edit, shared: usize, key: &[u8], leaf: L) {
    let mut node = link.edit(edit);
    let prefix: [u8; PREFIX] = std::array::from_fn(|at| node.read().prefix().get(at).copied().unwrap_or(0));
    let len = node.read().prefix_len();
    node.set_prefix(&[&prefix[shared + 1..len]]);
    let mut above = NodeMut::small(edit.birth(), &key[..shared]);
    above.add(prefix[shared], Link::node(node));
    hang(&mut above, key, shared, Link::leaf(leaf));
    *link = Link::node(above);
}

/// Inserts a parent above a leaf. Its key and the new one share `shared` bytes; `byte` is the next one of the old key,
/// none if the key ends there.
fn split_leaf<L: Leaf>(
    mut link: &mut Link<L>,
    edit: &mut Edit,
    mut shared: usize,
    mut key: &[u8],
    byte: Option<u8>,
    leaf: L,
) {
    let found = link.take();
    // A prefix longer than `PREFIX` is stored in a chain of nodes.
    while shared > PREFIX {
        let mut node = NodeMut::small(edit.birth(), &key[..PREFIX]);
        node.add(key[PREFIX], Link::EMPTY);
        *link = Link::node(node);
        link = link.edit(edit).into_child(key[PREFIX]);
        key = &key[PREFIX + 1..];
        shared -= PREFIX + 1;
    }
    let mut node = NodeMut::small(edit.birth(), &key[..shared]);
    match byte {
        Some(byte) => node.add(byte, found),
        None => *node.own_mut() = found,
    }
    hang(&mut node, key, shared, Link::leaf(leaf));
    *link = Link::node(node);
}

/// Stores a link under the key's byte at a depth, or as the node's own leaf if the key ends there.
fn hang<L: Leaf>(node: &mut NodeMut<'_, L>, key: &[u8], depth: usize, link: Link<L>) {
    match key.get(depth) {
        Some(byte) => node.add(*byte, link),
        None => *node.own_mut() = link,
    }
}

/// Removes the leaf under the remainder of a key, which must exist.
fn remove_below<L: Leaf>(link: &mut Link<L>, edit: &mut Edit, key: &[u8]) -> Removed<L> {
    if link.is_leaf() {
        return link.take_leaf();
    }
    let mut node = link.edit(edit);
    let key = &key[node.read().prefix_len()..];
    let removed = match key.split_first() {
        None => node.own_mut().take_leaf(),
        Some((byte, rest)) => {
            let child = node.child_mut(*byte);
            let removed = remove_below(child, edit, rest);
            if child.is_empty() {
                node.remove(*byte);
            } else if node.only_byte().is_none() {
                return removed;
            }
            removed
        }
    };
    compact(link, edit);
    removed
}

/// Replaces the node of a link by its smallest equivalent: its leaf, its only child with a merged prefix, or a node of
/// a smaller size.
fn compact<L: Leaf>(link: &mut Link<L>, edit: &mut Edit) {
    let mut node = link.edit(edit);
    if !node.has_children() {
        let own = node.own_mut().take();
        node.free();
        *link = own;
        return;
    }
    let Some(byte) = node.only_byte() else {
        if let Ok(smaller) = node.shrink() {
            *link = Link::node(smaller);
        }
        return;
    };
    let (prefix, len) = (node.read().prefix(), node.read().prefix_len());
    let mut above = [0; PREFIX + 1];
    above[..len].copy_from_slice(prefix);
    above[len] = byte;
    let child = node.child_mut(byte);
    if child.is_node() {
        let below = match child.get() {
            Child::Node(below) => below.prefix_len(),
            _ => 0,
        };
        if len + 1 + below > PREFIX {
            return;
        }
        let mut child = child.edit(edit);
        let mut own = [0; PREFIX];
        own[..below].copy_from_slice(child.read().prefix());
        child.set_prefix(&[&above[..=len], &own[..below]]);
    }
    let child = node.child_mut(byte).take();
    node.free();
    *link = child;
}

/// Returns the length of the common prefix of two keys.
#[inline]
pub(super) fn common(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let words = |at| word(a, at).unwrap_or_default() ^ word(b, at).unwrap_or_default();
    let mut at = 0;
    while at + 8 <= len {
        let differ = words(at);
        if differ != 0 {
            return at + (differ.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    match len.checked_sub(8) {
        // The last eight bytes overlap the previous word, which is known to be equal.
        Some(last) => last + (words(last).trailing_zeros() / 8) as usize,
        None => a.iter().zip(b).take_while(|(a, b)| a == b).count(),
    }
}

/// Reads eight bytes in little-endian order, so that the first differing byte is in the lowest bits of an XOR.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
}

/// Whether two keys are equal. Most keys are short: those of 8 to 16 bytes are compared in two overlapping words,
/// without a call to `memcmp`.
#[inline(always)]
fn same(a: &[u8], b: &[u8]) -> bool {
    match a.len() {
        len if len != b.len() => false,
        8..=16 => word(a, 0) == word(b, 0) && word(a, a.len() - 8) == word(b, b.len() - 8),
        _ => a == b,
    }
}
