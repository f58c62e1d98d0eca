//! A persistent map from revisions to leaves: a trie of 32 links per node over the bits of the revision, only as high
//! as its content requires.
//!
//! Revisions only grow, and small ones disappear as rows are rewritten. Hence the newest node of the
//! lowest level is cached for the next insert, and the root is the lowest node that covers all revisions.

#![expect(unsafe_code, reason = "versions share nodes, as those of trees")]

use std::marker::PhantomData;
use std::ptr::null_mut;

use super::heap::{Edit, Fate, Retired};
use super::leaf::Alias;
use super::range::{Cursor, Ends};
use super::roots::Garbage;

/// Bits of a revision that one level consumes.
const BITS: u32 = 5;
const LINKS: usize = 1 << BITS;
const MASK: u64 = LINKS as u64 - 1;
/// The height of a trie of all 64-bit revisions: 64 bits by 5 a level, rounded up.
const LEVELS: usize = 13;

/// One version of a revision index.
pub(crate) struct Revisions<L> {
    /// Null if the index is empty.
    root: *mut Node<L>,
    /// The number of levels; nodes of the lowest link to leaves.
    height: u32,
    /// The common bits of all revisions above those that the root consumes.
    high: u64,
    len: usize,
    /// The most recently written node of the lowest level, if it is private to the current edit, and the high bits of
    /// its revisions.
    newest: (*mut Node<L>, u64),
}

struct Node<L> {
    birth: u64,
    /// A bitmap of the links that are set.
    used: u32,
    links: [Link<L>; LINKS],
}

union Link<L> {
    nothing: (),
    node: *mut Node<L>,
    leaf: std::mem::ManuallyDrop<Alias<L>>,
}

// JUSTIFICATION: an index owns or shares the leaves and nodes below it, which are behind raw pointers.
// SAFETY: published nodes are never written to; private nodes are reached only through the writer's `&mut`. Leaves are
// `Send + Sync` by the bound.
unsafe impl<L: Send + Sync> Send for Revisions<L> {}
// SAFETY: as above.
unsafe impl<L: Send + Sync> Sync for Revisions<L> {}

impl<L> Node<L> {
    const FATE: &'static Fate = &Fate { free: free_node::<L>, close: close_nothing };

    fn boxed(birth: u64) -> *mut Self {
        let links = [const { Link { nothing: () } }; LINKS];
        Box::into_raw(Box::new(Node { birth, used: 0, links }))
    }
}

unsafe fn free_node<L>(ptr: *mut ()) {
    // JUSTIFICATION: see `Fate`.
    // SAFETY: `ptr` is a boxed node, and by the contract of `Fate` nothing reaches it any more.
    drop(unsafe { Box::from_raw(ptr.cast::<Node<L>>()) });
}

unsafe fn close_nothing(_: *mut ()) {}

/// Returns the index of a revision's link in a node at a level.
fn place(revision: u64, level: u32) -> usize {
    ((revision >> (level * BITS)) & MASK) as usize
}

/// Returns the bits of a revision above the lowest `height` levels; 0 if there are none.
fn above(revision: u64, height: u32) -> u64 {
    revision.checked_shr(height * BITS).unwrap_or(0)
}

impl<L> Revisions<L> {
    pub(crate) const EMPTY: Self =
        Revisions { root: null_mut(), height: 1, high: 0, len: 0, newest: (null_mut(), 0) };

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a copy for the next version.
    ///
    /// # Safety
    /// As for [`Tree::fork`](super::Tree::fork).
    pub(crate) unsafe fn fork(&self) -> Self {
        Revisions { newest: (null_mut(), 0), ..*self }
    }

    /// Returns the leaves of this revision and later ones, in order.
    pub(crate) fn from(&self, revision: u64) -> RevisionRange<'_, L> {
        let mut walk = Walk::new(self.height);
        // JUSTIFICATION: nodes are behind raw pointers.
        // SAFETY: nodes that a version reaches live while it is borrowed; nodes above the lowest level link to nodes.
        unsafe {
            let found = above(revision, self.height);
            if !self.root.is_null() && found < self.high {
                walk.push(self.root, (*self.root).used);
            } else if !self.root.is_null() && found == self.high {
                let mut node = self.root;
                for level in (0..self.height).rev() {
                    let at = place(revision, level);
                    let used = (*node).used & (u32::MAX << at);
                    if level == 0 {
                        walk.push(node, used);
                        break;
                    }
                    walk.push(node, used & !(1 << at));
                    if used & (1 << at) == 0 {
                        break;
                    }
                    node = (*node).links[at].node;
                }
            }
        }
        Ends::new(Some(self), walk)
    }

    fn contains(&self, revision: u64) -> bool {
        let mut node = self.root;
        if node.is_null() || above(revision, self.height) != self.high {
            return false;
        }
        for level in (0..self.height).rev() {
            let at = place(revision, level);
            // JUSTIFICATION: as above.
            // SAFETY: as above.
            unsafe {
                if (*node).used & (1 << at) == 0 {
                    return false;
                }
                if level > 0 {
                    node = (*node).links[at].node;
                }
            }
        }
        true
    }

    /// Returns the node behind a pointer as private to the edit: copied if it is shared, allocated if null.
    ///
    /// # Safety
    /// The pointer is one of this version, and private to the edit.
    unsafe fn own(edit: &mut Edit, node: *mut *mut Node<L>) -> *mut Node<L> {
        // JUSTIFICATION: the rule of births, as for trees.
        // SAFETY: the pointer is valid and private by the caller's contract. The original is retired exactly once:
        // the only pointer to it in this version has just been overwritten.
        unsafe {
            let old = *node;
            if old.is_null() {
                *node = Node::boxed(edit.birth());
            } else if (*old).birth != edit.birth() {
                *node = Box::into_raw(Box::new(std::ptr::read(old)));
                (**node).birth = edit.birth();
                edit.retire(Retired::new(old.cast(), (*old).birth, Node::<L>::FATE));
            }
            *node
        }
    }

    /// Stores a leaf under a revision that has none.
    pub(crate) fn insert(&mut self, edit: &mut Edit, revision: u64, leaf: Alias<L>) {
        self.len += 1;
        let leaf = Link { leaf: std::mem::ManuallyDrop::new(leaf) };
        // JUSTIFICATION: nodes are behind raw pointers.
        // SAFETY: all nodes written to are private to the edit: returned by `boxed` or `own`, or cached in `newest`,
        // which `fork` clears.
        unsafe {
            if !self.newest.0.is_null() && self.newest.1 == revision >> BITS {
                let node = self.newest.0;
                (*node).links[place(revision, 0)] = leaf;
                (*node).used |= 1 << place(revision, 0);
                return;
            }
            if self.root.is_null() {
                self.height = 1;
                self.high = above(revision, 1);
            }
            while above(revision, self.height) != self.high {
                let root = Node::boxed(edit.birth());
                let at = (self.high & MASK) as usize;
                (*root).links[at] = Link { node: self.root };
                (*root).used = 1 << at;
                self.root = root;
                self.height += 1;
                self.high >>= BITS;
            }
            let mut link: *mut *mut Node<L> = &raw mut self.root;
            for level in (0..self.height).rev() {
                let node = Self::own(edit, link);
                let at = place(revision, level);
                if level == 0 {
                    (*node).links[at] = leaf;
                    (*node).used |= 1 << at;
                    self.newest = (node, revision >> BITS);
                    break;
                }
                if (*node).used & (1 << at) == 0 {
                    (*node).links[at] = Link { node: null_mut() };
                    (*node).used |= 1 << at;
                }
                link = &raw mut (*node).links[at].node;
            }
        }
    }

    /// Removes the leaf of a revision, if there is one.
    pub(crate) fn remove(&mut self, edit: &mut Edit, revision: u64) {
        if !self.contains(revision) {
            return;
        }
        self.len -= 1;
        let mut path = [null_mut::<*mut Node<L>>(); LEVELS];
        // JUSTIFICATION: as above.
        // SAFETY: as above; a node is freed after its only link was cleared, and only if this edit allocated it.
        unsafe {
            let mut link: *mut *mut Node<L> = &raw mut self.root;
            for level in (0..self.height).rev() {
                path[level as usize] = link;
                let node = Self::own(edit, link);
                link = &raw mut (*node).links[place(revision, level)].node;
            }
            for level in 0..self.height {
                let node = *path[level as usize];
                (*node).used &= !(1 << place(revision, level));
                if (*node).used != 0 {
                    break;
                }
                if node == self.newest.0 {
                    self.newest.0 = null_mut();
                }
                *path[level as usize] = null_mut();
                free_node::<L>(node.cast());
            }
            while !self.root.is_null() && self.height > 1 && (*self.root).used.is_power_of_two() {
                let root = self.root;
                let at = (*root).used.trailing_zeros();
                self.root = (*root).links[at as usize].node;
                self.high = (self.high << BITS) | u64::from(at);
                self.height -= 1;
                if (*root).birth == edit.birth() {
                    free_node::<L>(root.cast());
                } else {
                    edit.retire(Retired::new(root.cast(), (*root).birth, Node::<L>::FATE));
                }
            }
        }
    }

    /// Frees all nodes of the edit. The index is empty afterwards.
    pub(crate) fn abandon(&mut self, birth: u64) {
        let mut made = Vec::new();
        // JUSTIFICATION: an aborted transaction must not leak its allocations.
        // SAFETY: as for `Tree::abandon`.
        unsafe {
            self.each_node(&|other| other == birth, &mut |retired| made.push(retired));
            made.into_iter().for_each(|retired| Garbage::free(retired));
        }
        *self = Self::EMPTY;
    }

    /// Retires all nodes.
    ///
    /// # Safety
    /// As for [`Tree::dismantle`](super::Tree::dismantle).
    pub(crate) unsafe fn dismantle(&self, each: &mut dyn FnMut(Retired)) {
        // JUSTIFICATION: the last handle of the database was dropped, so its nodes have to be freed.
        // SAFETY: by the caller's contract this happens once, and `want` accepts everything.
        unsafe { self.each_node(&|_| true, each) }
    }

    /// # Safety
    /// As for `dismantle`, for the nodes that `want` accepts; below a node that `want` rejects, it rejects all.
    unsafe fn each_node(&self, want: &dyn Fn(u64) -> bool, each: &mut dyn FnMut(Retired)) {
        let (mut first, mut stack) = (Some((self.root, self.height)), Vec::new());
        while let Some((node, level)) = first.take().or_else(|| stack.pop()) {
            // JUSTIFICATION: walks an index that is being freed.
            // SAFETY: `each` only collects: nodes are freed with the caller's list, after this function returns.
            unsafe {
                if node.is_null() || !want((*node).birth) {
                    continue;
                }
                if level > 1 {
                    let used = (0..LINKS).filter(|at| (*node).used & (1 << at) != 0);
                    stack.extend(used.map(|at| ((*node).links[at].node, level - 1)));
                }
                each(Retired::new(node.cast(), (*node).birth, Node::<L>::FATE));
            }
        }
    }
}

/// An iterator over leaves in the order of their revisions.
pub(crate) type RevisionRange<'s, L> = Ends<'s, Alias<L>, Walk<'s, L>>;

/// The path to a leaf: the nodes from the root down, each with a bitmap of its links not yet visited.
pub(crate) struct Walk<'s, L> {
    height: u32,
    depth: usize,
    frames: [(*mut Node<L>, u32); LEVELS],
    marker: PhantomData<&'s L>,
}

// JUSTIFICATION: raw pointers are neither `Send` nor `Sync`; these stand for shared references.
// SAFETY: nodes and leaves reachable from them do not change while the version is borrowed.
unsafe impl<L: Sync> Send for Walk<'_, L> {}
// SAFETY: as above.
unsafe impl<L: Sync> Sync for Walk<'_, L> {}

impl<L> Walk<'_, L> {
    fn new(height: u32) -> Self {
        Walk { height, depth: 0, frames: [(null_mut(), 0); LEVELS], marker: PhantomData }
    }

    fn push(&mut self, node: *mut Node<L>, used: u32) {
        self.frames[self.depth] = (node, used);
        self.depth += 1;
    }
}

impl<'s, L> Walk<'s, L> {
    /// Returns the next leaf; `pick` selects a link of the unvisited ones (first or last, by direction).
    #[inline(always)]
    fn step(&mut self, pick: impl Fn(u32) -> u32) -> Option<&'s Alias<L>> {
        loop {
            let (node, used) = self.frames[self.depth.checked_sub(1)?];
            if used == 0 {
                self.depth -= 1;
                continue;
            }
            let at = pick(used);
            self.frames[self.depth - 1].1 &= !(1 << at);
            // JUSTIFICATION: nodes are behind raw pointers.
            // SAFETY: the nodes belong to a version that is borrowed for `'s`; only those of the lowest level link to
            // leaves.
            unsafe {
                let link = &(*node).links[at as usize];
                if self.depth as u32 == self.height {
                    return Some(&link.leaf);
                }
                self.push(link.node, (*link.node).used);
            }
        }
    }
}

impl<'s, L> Cursor<'s, Alias<L>> for Walk<'s, L> {
    type Top = &'s Revisions<L>;

    fn at_end(all: &'s Revisions<L>) -> Self {
        let mut walk = Walk::new(all.height);
        if !all.root.is_null() {
            // JUSTIFICATION: as above.
            // SAFETY: as above.
            walk.push(all.root, unsafe { (*all.root).used });
        }
        walk
    }

    #[inline]
    fn forwards(&mut self) -> Option<&'s Alias<L>> {
        self.step(u32::trailing_zeros)
    }

    fn backwards(&mut self) -> Option<&'s Alias<L>> {
        self.step(|used| u32::BITS - 1 - used.leading_zeros())
    }
}
