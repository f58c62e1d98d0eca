//! The pointers of a tree.

#![expect(unsafe_code, reason = "a link is one tagged pointer")]

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use super::heap::{Edit, Fate, Retired};
use super::leaf::Leaf;
use super::node::{Head, NodeMut, NodeRef};

/// An edge of a tree: empty, a leaf or a node.
///
/// Its target lives as long as the link can be borrowed, since the version that contains the link keeps it. Dropping
/// a link drops nothing.
pub(super) union Link<L> {
    /// Odd if it points at a node, null if at nothing.
    node: *mut Head<L>,
    leaf: ManuallyDrop<L>,
}

// JUSTIFICATION: stands for the leaves and nodes below.
// SAFETY: published nodes are only read, private ones have one owner; leaves can go and be seen anywhere.
unsafe impl<L: Send + Sync> Send for Link<L> {}
// SAFETY: as above.
unsafe impl<L: Send + Sync> Sync for Link<L> {}

/// The content of a link.
pub(super) enum Child<'s, L> {
    Nothing,
    Leaf(&'s L),
    Node(NodeRef<'s, L>),
}

/// A leaf taken out of a tree, which older versions may still reach: to be retired.
pub(crate) struct Removed<L>(ManuallyDrop<L>);

impl<L> Link<L> {
    pub(super) const EMPTY: Self = Link { node: std::ptr::null_mut() };

    pub(super) fn leaf(leaf: L) -> Self {
        const { assert!(size_of::<L>() == size_of::<usize>()) };
        Link { leaf: ManuallyDrop::new(leaf) }
    }

    /// A link to a node that nothing else links to.
    pub(super) fn node(node: NodeMut<'_, L>) -> Self {
        Link { node: node.as_ptr().map_addr(|addr| addr | 1) }
    }

    fn addr(&self) -> usize {
        // JUSTIFICATION: the tag distinguishes the variants.
        // SAFETY: each variant is one initialized pointer.
        unsafe { self.node }.addr()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.addr() == 0
    }

    pub(super) fn is_node(&self) -> bool {
        self.addr() & 1 == 1
    }

    pub(super) fn is_leaf(&self) -> bool {
        !self.is_empty() && !self.is_node()
    }

    #[inline(always)]
    pub(super) fn get(&self) -> Child<'_, L> {
        if self.is_node() {
            // JUSTIFICATION: the step down a tree.
            // SAFETY: an odd pointer is that of a node, which lives while the link is borrowed.
            Child::Node(unsafe { NodeRef::new(self.node_ptr()) })
        } else {
            self.as_leaf().map_or(Child::Nothing, Child::Leaf)
        }
    }

    #[inline(always)]
    pub(super) fn as_leaf(&self) -> Option<&L> {
        // JUSTIFICATION: the memory of the link is the leaf's handle.
        // SAFETY: neither null nor odd, so a leaf was written here.
        self.is_leaf().then(|| unsafe { &*self.leaf })
    }

    fn node_ptr(&self) -> NonNull<Head<L>> {
        // JUSTIFICATION: takes the tag off.
        // SAFETY: only called with an odd pointer, which is not null without its lowest bit, since nodes are aligned.
        unsafe { NonNull::new_unchecked(self.node.map_addr(|addr| addr & !1)) }
    }

    /// Returns a second link to the same target.
    ///
    /// # Safety
    /// The versions in which the two are keep to the rules of births: what is below is changed in place by at most one
    /// of them, and retired once.
    pub(super) unsafe fn copy(&self) -> Self {
        // JUSTIFICATION: versions share what has not changed.
        // SAFETY: plain bits; the caller keeps the promise that both stay valid.
        unsafe { std::ptr::read(self) }
    }

    /// Takes the target out, leaving an empty link.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Link::EMPTY)
    }
}

impl<L: Leaf> Link<L> {
    /// Returns its node for mutation, replacing it by a copy first unless this edit allocated it.
    ///
    /// # Panics
    /// If it holds no node.
    #[inline]
    pub(super) fn edit(&mut self, edit: &mut Edit) -> NodeMut<'_, L> {
        assert!(self.is_node());
        let node = self.node_ptr();
        // JUSTIFICATION: a node of the edit's own birth is private to it, and changed in place.
        // SAFETY: the node lives while the link is borrowed; after the copy the link holds a node of the edit.
        let birth = unsafe { NodeRef::new(node) }.birth();
        let mut own = node;
        if birth != edit.birth() {
            // SAFETY: as above; the original is reached by older versions only, and retired this once, since the link
            // that led to it in this version is overwritten.
            unsafe {
                own = NodeRef::new(node).duplicate(edit.birth());
                edit.retire(Retired::new(node.as_ptr().cast(), birth, Head::<L>::FATE));
            }
            self.node = own.as_ptr().map_addr(|addr| addr | 1);
        }
        // SAFETY: private to this edit, and borrowed from the only link to it.
        unsafe { NodeMut::new(own, PhantomData) }
    }

    /// Replaces its leaf; returns the old one.
    pub(super) fn replace_leaf(&mut self, leaf: L) -> Removed<L> {
        let new = Link::leaf(leaf);
        let mut old = std::mem::replace(self, new);
        old.take_leaf()
    }

    /// Takes the leaf it holds.
    ///
    /// # Panics
    /// If it holds none.
    pub(super) fn take_leaf(&mut self) -> Removed<L> {
        assert!(self.is_leaf());
        let old = self.take();
        // JUSTIFICATION: the handle moves out of the link.
        // SAFETY: it holds a leaf, and the link is gone.
        Removed(unsafe { old.leaf })
    }

    /// Passes the target and everything below it to `each`.
    ///
    /// # Safety
    /// `want` selects nodes and leaves by birth; below a node that is not selected there is none that is. Each
    /// allocation is passed only once in its life to a list that frees it, and nothing that outlives that list reaches
    /// it.
    pub(super) unsafe fn dismantle(self, want: &dyn Fn(u64) -> bool, each: &mut dyn FnMut(Retired)) {
        let (mut first, mut stack) = (Some(self), Vec::new());
        while let Some(mut link) = first.take().or_else(|| stack.pop()) {
            if link.is_leaf() {
                let leaf = link.take_leaf();
                if std::mem::needs_drop::<L>() && want(leaf.0.birth()) {
                    each(leaf.retired());
                }
            } else if link.is_node() {
                // JUSTIFICATION: the end of a tree.
                // SAFETY: the node is there until the list is freed, which is after this.
                let node = unsafe { NodeRef::new(link.node_ptr()) };
                if want(node.birth()) {
                    // SAFETY: the copies are the only links used from here on.
                    stack.extend(node.links().map(|link| unsafe { link.copy() }));
                    let what = link.node_ptr().as_ptr().cast();
                    // SAFETY: retired once, as the caller promises.
                    each(unsafe { Retired::new(what, node.birth(), Head::<L>::FATE) });
                }
            }
        }
    }
}

impl<L: Leaf> Removed<L> {
    const FATE: &'static Fate = &Fate { free: free_leaf::<L>, close: close_leaf::<L> };

    /// Retires it with the edit. A leaf that borrows from another tree owns nothing, so it is skipped.
    pub(crate) fn retire(self, edit: &mut Edit) {
        if std::mem::needs_drop::<L>() {
            edit.retire(self.retired());
        }
    }

    fn retired(self) -> Retired {
        let birth = self.0.birth();
        // JUSTIFICATION: one pointer of any leaf type becomes an item of the list.
        // SAFETY: `Leaf` is one pointer (checked in `Link::leaf`), `Send` and `Sync`; as it was taken out of its tree,
        // no version to come reaches it, and it is retired by value, once.
        unsafe {
            let what = std::mem::transmute_copy::<ManuallyDrop<L>, *mut ()>(&self.0);
            Retired::new(what, birth, Self::FATE)
        }
    }
}

impl<L> std::ops::Deref for Removed<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.0
    }
}

unsafe fn free_leaf<L>(what: *mut ()) {
    // JUSTIFICATION: the inverse of `Removed::retired`.
    // SAFETY: `what` was such a leaf, which is unreachable by now.
    drop(unsafe { std::mem::transmute_copy::<*mut (), L>(&what) });
}

unsafe fn close_leaf<L: Leaf>(what: *mut ()) {
    // JUSTIFICATION: as above, without taking it.
    // SAFETY: `what` is such a leaf.
    let leaf = unsafe { ManuallyDrop::new(std::mem::transmute_copy::<*mut (), L>(&what)) };
    leaf.close();
}
