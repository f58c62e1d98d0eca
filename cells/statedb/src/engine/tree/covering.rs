//! Looking for what covers a key, in a tree whose keys begin with words as `key/bits.rs` makes them.

use super::{Tree, common};
use crate::engine::leaf::Leaf;
use crate::engine::link::{Child, Link};
use crate::engine::node::NodeRef;
use crate::engine::range::Range;
use crate::key::covering;
use crate::watch::WatchCell;

/// The leaves of the longest word that covers another: all that begin with it.
pub(crate) struct Covering<'s, L> {
    leaves: Option<&'s Link<L>>,
    /// The deepest node that every insert and delete changes after which the answer is another.
    node: Option<NodeRef<'s, L>>,
}

impl<L: Leaf> Tree<L> {
    /// The leaves of the longest word that covers this one.
    #[inline]
    pub(crate) fn longest(&self, word: &[u8]) -> Covering<'_, L> {
        let mut link = &self.root;
        let mut rest = word;
        // A covering prefix that does not exist yet may begin anywhere: any insert changes the first node.
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
                        // The word itself has been found above.
                        Some(child) if rest.len() > 1 => link = child,
                        _ => return best,
                    }
                    rest = &rest[1..];
                }
            }
        }
    }
}

/// Whether what begins so begins with a word that covers this one, where both have the same before them.
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
    /// All of them, in the order of their keys.
    pub(crate) fn leaves(self) -> Range<'s, L> {
        self.leaves.map_or_else(Range::empty, Range::below)
    }

    /// The first of them.
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

    /// The watch that closes when they change, or are not the longest any more; none if only that of the whole tree does.
    pub(crate) fn watch(self) -> Option<&'s WatchCell> {
        self.node.map(NodeRef::watch)
    }
}
