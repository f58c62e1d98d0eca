//! Nodes that are private to a write transaction.

use std::alloc::{alloc_zeroed, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;

use super::{Full, Head, Indexed, Kind, NodeRef, PREFIX, Sorted, View, free_node};
use crate::engine::leaf::Leaf;
use crate::engine::link::Link;
use crate::watch::WatchCell;

enum ViewMut<'e, L> {
    N4(&'e mut Sorted<L, 4>),
    N16(&'e mut Sorted<L, 16>),
    N48(&'e mut Indexed<L>),
    N256(&'e mut Full<L>),
}

/// An exclusive reference to a node that is private to a write transaction.
pub(in crate::engine) struct NodeMut<'e, L> {
    head: NonNull<Head<L>>,
    marker: PhantomData<&'e mut L>,
}

impl<'e, L> NodeMut<'e, L> {
    /// # Safety
    /// The node lives for `'e`, and nothing else has access to it.
    pub(in crate::engine) unsafe fn new(head: NonNull<Head<L>>, marker: PhantomData<&'e mut L>) -> Self {
        NodeMut { head, marker }
    }

    /// Allocates a node of the smallest size, with a prefix and no children.
    pub(in crate::engine) fn small(birth: u64, prefix: &[u8]) -> Self {
        let mut node = Self::allocate(Kind::N4, birth);
        node.set_prefix(&[prefix]);
        node
    }

    fn allocate(kind: Kind, birth: u64) -> Self {
        let layout = kind.layout::<L>();
        // JUSTIFICATION: the size depends on `kind`.
        // SAFETY: the layout is not zero-sized. Zeros are valid for all fields except the watch, which is written
        // before the node is used; a zero link is `Link::EMPTY`.
        unsafe {
            let head = alloc_zeroed(layout).cast::<Head<L>>();
            let Some(head) = NonNull::new(head) else { handle_alloc_error(layout) };
            (&raw mut (*head.as_ptr()).watch).write(WatchCell::default());
            (&raw mut (*head.as_ptr()).kind).write(kind);
            (&raw mut (*head.as_ptr()).birth).write(birth);
            NodeMut { head, marker: PhantomData }
        }
    }

    pub(in crate::engine) fn as_ptr(&self) -> *mut Head<L> {
        self.head.as_ptr()
    }

    pub(in crate::engine) fn read(&self) -> NodeRef<'_, L> {
        // JUSTIFICATION: reads share the code of `NodeRef`.
        // SAFETY: the result borrows `self`, the only handle that can change the node.
        unsafe { NodeRef::new(self.head) }
    }

    fn head_mut(&mut self) -> &mut Head<L> {
        // JUSTIFICATION: nodes are behind raw pointers.
        // SAFETY: by the contract of `new` the node lives, and `self` is its only handle.
        unsafe { self.head.as_mut() }
    }

    fn view_mut(&mut self) -> ViewMut<'_, L> {
        // JUSTIFICATION: one pointer stands for four types.
        // SAFETY: all four are `repr(C)` and begin with the head; its kind is the type that was allocated. `self` is
        // the node's only handle.
        unsafe {
            match self.head.as_ref().kind {
                Kind::N4 => ViewMut::N4(self.head.cast().as_mut()),
                Kind::N16 => ViewMut::N16(self.head.cast().as_mut()),
                Kind::N48 => ViewMut::N48(self.head.cast().as_mut()),
                Kind::N256 => ViewMut::N256(self.head.cast().as_mut()),
            }
        }
    }

    /// Sets the prefix to the concatenation of the parts.
    pub(in crate::engine) fn set_prefix(&mut self, parts: &[&[u8]]) {
        let mut prefix = [0; PREFIX];
        let mut len = 0;
        for part in parts {
            prefix[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        let head = self.head_mut();
        head.prefix = prefix;
        head.prefix_len = len as u8;
    }

    /// Returns the link to the leaf whose key ends here.
    pub(in crate::engine) fn into_own(self) -> &'e mut Link<L> {
        // JUSTIFICATION: the borrow of the link lasts as long as that of the node, not only as long as `self`.
        // SAFETY: by the contract of `new` the node lives for `'e` without another handle, and `self` is consumed.
        unsafe { &mut (*self.head.as_ptr()).leaf }
    }

    pub(in crate::engine) fn own_mut(&mut self) -> &mut Link<L> {
        &mut self.head_mut().leaf
    }

    /// Returns the link to the child for a byte, which must exist.
    #[inline]
    pub(in crate::engine) fn into_child(self, byte: u8) -> &'e mut Link<L> {
        let child = NonNull::from(self.read().child(byte).expect("a child that is there"));
        let offset = child.addr().get() - self.head.addr().get();
        // JUSTIFICATION: finds the link with the code of readers, then borrows it mutably.
        // SAFETY: the offset is that of a link inside the node, derived from the node's own pointer; `self` is
        // consumed, so nothing else borrows the node during `'e`.
        unsafe { self.head.byte_add(offset).cast::<Link<L>>().as_mut() }
    }

    /// Like [`into_child`](Self::into_child), but borrows the node instead of consuming it.
    pub(in crate::engine) fn child_mut(&mut self, byte: u8) -> &mut Link<L> {
        // JUSTIFICATION: reuses `into_child`.
        // SAFETY: the second handle is consumed here, and the result borrows `self`.
        unsafe { NodeMut::new(self.head, PhantomData) }.into_child(byte)
    }

    pub(in crate::engine) fn is_full(&self) -> bool {
        let node = self.read();
        node.count() == node.head().kind.capacity()
    }

    /// Adds a child for a byte that has none.
    ///
    /// # Panics
    /// If the node is full.
    pub(in crate::engine) fn add(&mut self, byte: u8, link: Link<L>) {
        assert!(!self.is_full());
        let count = self.read().count();
        match self.view_mut() {
            ViewMut::N4(node) => node.add(byte, link),
            ViewMut::N16(node) => node.add(byte, link),
            ViewMut::N48(node) => {
                node.index[usize::from(byte)] = count as u8 + 1;
                node.children[count] = link;
            }
            ViewMut::N256(node) => node.children[usize::from(byte)] = link,
        }
        self.head_mut().count += 1;
    }

    /// Removes the slot of a byte's child, which must exist and whose link must be empty.
    pub(in crate::engine) fn remove(&mut self, byte: u8) {
        let last = self.read().count() - 1;
        match self.view_mut() {
            ViewMut::N4(node) => node.remove(byte),
            ViewMut::N16(node) => node.remove(byte),
            ViewMut::N48(node) => {
                let at = usize::from(std::mem::take(&mut node.index[usize::from(byte)])) - 1;
                // Children occupy the first `count` slots: the last one moves into the gap.
                if at != last {
                    let moved = node.index.iter_mut().find(|place| usize::from(**place) == last + 1);
                    *moved.expect("the place of a child") = at as u8 + 1;
                    node.children[at] = node.children[last].take();
                }
                node.children[last] = Link::EMPTY;
            }
            ViewMut::N256(node) => node.children[usize::from(byte)] = Link::EMPTY,
        }
        self.head_mut().count -= 1;
    }

    /// Returns the byte of the only child of a node of the smallest size that has no leaf of its own.
    pub(in crate::engine) fn only_byte(&self) -> Option<u8> {
        match self.read().view() {
            View::N4(node) if node.head.count == 1 && node.head.leaf.is_empty() => Some(node.bytes[0]),
            _ => None,
        }
    }

    pub(in crate::engine) fn has_children(&self) -> bool {
        self.read().count() > 0
    }
}

impl<L: Leaf> NodeMut<'_, L> {
    /// Moves the content to a node of the next larger size.
    pub(in crate::engine) fn grow(self) -> Self {
        let larger = self.read().head().kind.larger();
        self.rebuild(larger)
    }

    /// Moves the content to a node of the next smaller size, if few enough children remain; otherwise returns the node
    /// unchanged as the error.
    pub(in crate::engine) fn shrink(self) -> Result<Self, Self> {
        let node = self.read();
        match node.head().kind.smaller(node.count()) {
            Some(smaller) => Ok(self.rebuild(smaller)),
            None => Err(self),
        }
    }

    fn rebuild(mut self, kind: Kind) -> Self {
        let old = self.read();
        let mut new = Self::allocate(kind, old.birth());
        new.set_prefix(&[old.prefix()]);
        *new.own_mut() = self.own_mut().take();
        match self.view_mut() {
            ViewMut::N4(node) => node.move_to(&mut new),
            ViewMut::N16(node) => node.move_to(&mut new),
            ViewMut::N48(node) => {
                for (byte, at) in node.index.iter().enumerate().filter(|(_, at)| **at != 0) {
                    new.add(byte as u8, node.children[usize::from(*at) - 1].take());
                }
            }
            ViewMut::N256(node) => {
                for (byte, link) in node.children.iter_mut().enumerate().filter(|(_, link)| !link.is_empty())
                {
                    new.add(byte as u8, link.take());
                }
            }
        }
        self.free();
        new
    }

    /// Frees the node, which the current edit allocated and which nothing links to any more.
    pub(in crate::engine) fn free(self) {
        // JUSTIFICATION: an unpublished node has no readers and is freed at once.
        // SAFETY: the node is private to the transaction, and `self`, its only handle, is consumed.
        unsafe { free_node::<L>(self.head.as_ptr().cast()) }
    }
}

impl<L, const N: usize> Sorted<L, N> {
    fn add(&mut self, byte: u8, link: Link<L>) {
        let count = usize::from(self.head.count);
        let at = self.bytes[..count].partition_point(|other| *other < byte);
        self.bytes[at..=count].rotate_right(1);
        self.children[at..=count].rotate_right(1);
        self.bytes[at] = byte;
        self.children[at] = link;
    }

    fn remove(&mut self, byte: u8) {
        let count = usize::from(self.head.count);
        let at = self.bytes[..count].partition_point(|other| *other < byte);
        self.bytes[at..count].rotate_left(1);
        self.children[at..count].rotate_left(1);
        self.children[count - 1] = Link::EMPTY;
    }

    fn move_to(&mut self, new: &mut NodeMut<'_, L>) {
        let count = usize::from(self.head.count);
        for (byte, link) in self.bytes.iter().zip(&mut self.children).take(count) {
            new.add(*byte, link.take());
        }
    }
}
