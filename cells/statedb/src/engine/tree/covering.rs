//! Longest prefix match, in a tree whose keys begin with words as encoded by `key/bits.rs`.

use super::{Tree, common};
use crate::engine::leaf::Leaf;
use crate::engine::link::{Child, Link};
use crate::engine::node::NodeRef;
use crate::engine::range::Range;
use crate::key::covering;
use crate::watch::WatchCell;

/// The result of a longest prefix match: all leaves whose keys begin with the longest covering word.
pub(crate) struct Covering<'s, L> {
    leaves: Option<&'s Link<L>>,
    /// The deepest node that is copied by every insert and delete that changes the result.
    node: Option<NodeRef<'s, L>>,
}

impl<L: Leaf> Tree<L> {
    /// Returns the leaves of the longest word that covers this one.
    #[inline]
    pub(crate) fn longest(&self, word: &[u8]) -> Covering<'_, L> {
        let mut link = &self.root;
        let mut rest = word;
        // Without a match, the watch has to be the topmost node's: a covering prefix may be inserted anywhere below.
        let mut best = Covering { leaves: None, node: None };
        let mut above = None;
        loop {
            match link.get() {
                Child::Nothing => return best,
                Child::Leaf(leaf) => {
                    let covers = leaf.with_key(|key| covers(&key[word.len() - rest.len()..], rest));
                    return if covers { Covering { leaves: Some(link), node: above } } else { best };
                }
                Child::Node(node) => {
                    if above.is_none() {
                        best.node = Some(node);
                    }
                    above = Some(node);
                    let prefix = node.prefix();
                    let shared = common(prefix, rest);
                    if shared < prefix.len() || shared == rest.len() {
                        let covers = covers(&prefix[shared..], &rest[shared..]);
                        return if covers { Covering { leaves: Some(link), node: above } } else { best };
                    }
                    rest = &rest[shared..];
                    if let Some(found) = node.last_child(covering(rest[0])) {
                        best = Covering { leaves: Some(found), node: above };
                    }
                    match node.child(rest[0]) {
                        // The last symbol was handled by `last_child` above, which also matches the word itself.
                        Some(child) if rest.len() > 1 => link = child,
                        _ => return best,
                    }
                    rest = &rest[1..];
                }
            }
        }
    }
}

/// Whether keys that begin with `found` begin with a word that covers `word`. Both are remainders after an equal
/// prefix.
#[inline]
fn covers(found: &[u8], word: &[u8]) -> bool {
    let shared = common(found, word);
    match (found.get(shared), word.get(shared)) {
        (_, None) => true,
        (Some(found), Some(symbol)) => covering(*symbol).contains(found),
        (None, Some(_)) => false,
    }
}

impl<'s, L: Leaf> Covering<'s, L> {
    /// Returns all leaves, in the order of their keys.
    pub(crate) fn leaves(self) -> Range<'s, L> {
        self.leaves.map_or_else(Range::empty, Range::below)
    }

    /// Returns the first leaf.
    #[inline]
    pub(crate) fn first(self) -> Option<&'s L> {
        let mut link = self.leaves?;
        loop {
            match link.get() {
                Child::Nothing => return None,
                Child::Leaf(leaf) => return Some(leaf),
                Child::Node(node) => match node.own().as_leaf() {
                    Some(leaf) => return Some(leaf),
                    None => link = node.first()?,
                },
            }
        }
    }

    /// Returns the watch that closes when the leaves change or are no longer the longest match; none if only the watch
    /// of the whole tree does.
    pub(crate) fn watch(self) -> Option<&'s WatchCell> {
        self.node.map(NodeRef::watch)
    }
}
