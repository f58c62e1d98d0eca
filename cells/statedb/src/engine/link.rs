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

// JUSTIFICATION: a link owns or shares the leaves and nodes below it, which are behind raw pointers.
// SAFETY: published nodes are never written to, except for their watches, which are `Sync`; private nodes are
// reached only through the writer's `&mut`. Leaves are `Send + Sync` by the bound.
unsafe impl<L: Send + Sync> Send for Link<L> {}
// SAFETY: as above.
unsafe impl<L: Send + Sync> Sync for Link<L> {}

/// The content of a link.
pub(super) enum Child<'s, L> {
    Nothing,
    Leaf(&'s L),
    Node(NodeRef<'s, L>),
}

/// A leaf removed from a tree. Older versions may still reach it, so that it has to be retired, not dropped.
pub(crate) struct Removed<L>(ManuallyDrop<L>);

impl<L> Link<L> {
    pub(super) const EMPTY: Self = Link { node: std::ptr::null_mut() };

    pub(super) fn leaf(leaf: L) -> Self {
        const { assert!(size_of::<L>() == size_of::<usize>()) };
        Link { leaf: ManuallyDrop::new(leaf) }
    }

    /// Returns a link to a node that nothing else links to.
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
            // JUSTIFICATION: each lookup follows links; the tag distinguishes nodes from leaves without a second word.
            // SAFETY: an odd pointer is a tagged pointer to a node, and the node lives while the link is borrowed.
            Child::Node(unsafe { NodeRef::new(self.node_ptr()) })
        } else {
            self.as_leaf().map_or(Child::Nothing, Child::Leaf)
        }
    }

    #[inline(always)]
    pub(super) fn as_leaf(&self) -> Option<&L> {
        // JUSTIFICATION: readers borrow the leaf in place, without a reference count.
        // SAFETY: the pointer is neither null nor odd, so the `leaf` variant was written last.
        self.is_leaf().then(|| unsafe { &*self.leaf })
    }

    fn node_ptr(&self) -> NonNull<Head<L>> {
        // JUSTIFICATION: clears the tag bit.
        // SAFETY: only called with an odd pointer, which is not null without its lowest bit, since nodes are aligned.
        unsafe { NonNull::new_unchecked(self.node.map_addr(|addr| addr & !1)) }
    }

    /// Returns a second link to the same target.
    ///
    /// # Safety
    /// The versions that contain the two links follow the rule of births (see the module's documentation): everything
    /// below is changed in place by at most one of them, and retired once.
    pub(super) unsafe fn copy(&self) -> Self {
        // JUSTIFICATION: versions share unchanged nodes.
        // SAFETY: a link is plain bits without a destructor; by the caller's contract the target outlives both copies.
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
        // JUSTIFICATION: a node that this edit allocated is private to it and changed in place; any other is copied.
        // SAFETY: the link holds a node (asserted above), which lives while the link is borrowed.
        let birth = unsafe { NodeRef::new(node) }.birth();
        let mut own = node;
        if birth != edit.birth() {
            // SAFETY: as above. The original is reached by older versions only and is retired exactly once: the only
            // link to it in this version is overwritten below.
            unsafe {
                own = NodeRef::new(node).duplicate(edit.birth());
                edit.retire(Retired::new(node.as_ptr().cast(), birth, Head::<L>::FATE));
            }
            self.node = own.as_ptr().map_addr(|addr| addr | 1);
        }
        // SAFETY: the node has this edit's birth, so no other version reaches it, and the only link to it is borrowed
        // mutably.
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
        // JUSTIFICATION: moves the handle out of the link.
        // SAFETY: the link holds a leaf (asserted above) and is consumed, so the handle is not duplicated.
        Removed(unsafe { old.leaf })
    }

    /// Passes the target and everything below it to `each`, if `want` accepts its birth.
    ///
    /// # Safety
    /// Below a node that `want` rejects, `want` rejects everything. Each allocation is passed only once in its life to
    /// a list that frees it, and nothing that outlives that list reaches it.
    pub(super) unsafe fn dismantle(self, want: &dyn Fn(u64) -> bool, each: &mut dyn FnMut(Retired)) {
        let (mut first, mut stack) = (Some(self), Vec::new());
        while let Some(mut link) = first.take().or_else(|| stack.pop()) {
            if link.is_leaf() {
                let leaf = link.take_leaf();
                if std::mem::needs_drop::<L>() && want(leaf.0.birth()) {
                    each(leaf.retired());
                }
            } else if link.is_node() {
                // JUSTIFICATION: walks a tree that is being freed.
                // SAFETY: `each` only collects: nodes are freed with the caller's list, after this function returns.
                let node = unsafe { NodeRef::new(link.node_ptr()) };
                if want(node.birth()) {
                    // SAFETY: the originals are not used again, so each target is visited through one link.
                    stack.extend(node.links().map(|link| unsafe { link.copy() }));
                    let ptr = link.node_ptr().as_ptr().cast();
                    // SAFETY: retired once, by this function's contract.
                    each(unsafe { Retired::new(ptr, node.birth(), Head::<L>::FATE) });
                }
            }
        }
    }
}

impl<L: Leaf> Removed<L> {
    const FATE: &'static Fate = &Fate { free: free_leaf::<L>, close: close_leaf::<L> };

    /// Retires the leaf with the edit. An [`Alias`](super::leaf::Alias) owns nothing and is skipped.
    pub(crate) fn retire(self, edit: &mut Edit) {
        if std::mem::needs_drop::<L>() {
            edit.retire(self.retired());
        }
    }

    fn retired(self) -> Retired {
        let birth = self.0.birth();
        // JUSTIFICATION: erases the leaf's type, so that one list holds leaves and nodes of all indexes.
        // SAFETY: a `Leaf` is one pointer (checked in `Link::leaf`), `Send` and `Sync`. It was removed from its tree,
        // so no future version reaches it, and `self` is consumed, so it is retired once.
        unsafe {
            let ptr = std::mem::transmute_copy::<ManuallyDrop<L>, *mut ()>(&self.0);
            Retired::new(ptr, birth, Self::FATE)
        }
    }
}

impl<L> std::ops::Deref for Removed<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.0
    }
}

unsafe fn free_leaf<L>(ptr: *mut ()) {
    // JUSTIFICATION: the inverse of the transmute in `Removed::retired`.
    // SAFETY: `ptr` was made there from an `L`, and the caller frees it once, when no version reaches it.
    drop(unsafe { std::mem::transmute_copy::<*mut (), L>(&ptr) });
}

unsafe fn close_leaf<L: Leaf>(ptr: *mut ()) {
    // JUSTIFICATION: as above, without taking ownership.
    // SAFETY: `ptr` was made from an `L` that has not been freed; `ManuallyDrop` keeps it from being dropped here.
    let leaf = unsafe { ManuallyDrop::new(std::mem::transmute_copy::<*mut (), L>(&ptr)) };
    leaf.close();
}
