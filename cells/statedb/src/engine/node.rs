//! Inner nodes of four sizes.

#![expect(unsafe_code, reason = "nodes of four sizes behind one pointer, allocated by hand")]

mod edit;
mod lanes;

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;

use super::heap::Fate;
use super::link::Link;
use crate::watch::WatchCell;

pub(super) use edit::NodeMut;

/// The maximum length in bytes of the common key prefix that a node stores; a longer one makes a chain of nodes.
pub(super) const PREFIX: usize = 20;

/// The position behind all children.
pub(super) const END: usize = 256;

/// The header of all nodes.
#[repr(C)]
pub(super) struct Head<L> {
    birth: u64,
    watch: WatchCell,
    /// The leaf of the key that ends at this node.
    leaf: Link<L>,
    kind: Kind,
    prefix_len: u8,
    count: u16,
    prefix: [u8; PREFIX],
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
#[repr(u8)]
enum Kind {
    N4,
    N16,
    N48,
    N256,
}

/// A node of up to `N` children, sorted by key byte.
#[repr(C)]
struct Sorted<L, const N: usize> {
    head: Head<L>,
    bytes: [u8; N],
    children: [Link<L>; N],
}

/// A node of up to 48 children in any order. `index` maps a key byte to the child's position plus one; 0: no child.
#[repr(C)]
struct Indexed<L> {
    head: Head<L>,
    index: [u8; 256],
    children: [Link<L>; 48],
}

/// A node with a slot for the child of each key byte.
#[repr(C)]
struct Full<L> {
    head: Head<L>,
    children: [Link<L>; 256],
}

enum View<'s, L> {
    N4(&'s Sorted<L, 4>),
    N16(&'s Sorted<L, 16>),
    N48(&'s Indexed<L>),
    N256(&'s Full<L>),
}

impl Kind {
    fn layout<L>(self) -> Layout {
        match self {
            Kind::N4 => Layout::new::<Sorted<L, 4>>(),
            Kind::N16 => Layout::new::<Sorted<L, 16>>(),
            Kind::N48 => Layout::new::<Indexed<L>>(),
            Kind::N256 => Layout::new::<Full<L>>(),
        }
    }

    fn capacity(self) -> usize {
        [4, 16, 48, 256][self as usize]
    }

    fn larger(self) -> Kind {
        [Kind::N16, Kind::N48, Kind::N256, Kind::N256][self as usize]
    }

    /// Returns the next smaller size if `count` children fit into it with spare slots. The margin is hysteresis: a
    /// child that is added and removed in turn must not resize the node each time.
    fn smaller(self, count: usize) -> Option<Kind> {
        let (kind, most) = [(Kind::N4, 0), (Kind::N4, 3), (Kind::N16, 12), (Kind::N48, 40)][self as usize];
        (self != Kind::N4 && count <= most).then_some(kind)
    }
}

impl<L> Head<L> {
    pub(super) const FATE: &'static Fate = &Fate { free: free_node::<L>, close: close_node::<L> };
}

unsafe fn free_node<L>(ptr: *mut ()) {
    let head = ptr.cast::<Head<L>>();
    // JUSTIFICATION: the size of the allocation depends on the kind.
    // SAFETY: by the contract of `Fate`, `ptr` is a node that nothing reaches any more. Only its watch needs dropping:
    // links own nothing, and leaves are retired on their own.
    unsafe {
        let layout = (*head).kind.layout::<L>();
        std::ptr::drop_in_place(&raw mut (*head).watch);
        dealloc(head.cast(), layout);
    }
}

unsafe fn close_node<L>(ptr: *mut ()) {
    // JUSTIFICATION: see `Fate`.
    // SAFETY: by the contract of `Fate`, `ptr` is a node that has not been freed.
    unsafe { (*ptr.cast::<Head<L>>()).watch.close() }
}

/// A shared reference to a node.
pub(super) struct NodeRef<'s, L> {
    head: NonNull<Head<L>>,
    marker: PhantomData<&'s L>,
}

// JUSTIFICATION: raw pointers are neither `Send` nor `Sync`; this one stands for a `&Head<L>`.
// SAFETY: nothing reachable from it changes while it is borrowed, except watches, which are `Sync`.
unsafe impl<L: Sync> Send for NodeRef<'_, L> {}
// SAFETY: as above.
unsafe impl<L: Sync> Sync for NodeRef<'_, L> {}

impl<L> Clone for NodeRef<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for NodeRef<'_, L> {}

impl<'s, L> NodeRef<'s, L> {
    /// # Safety
    /// The node lives for `'s` and is not changed during it, except for its watch.
    pub(super) unsafe fn new(head: NonNull<Head<L>>) -> Self {
        NodeRef { head, marker: PhantomData }
    }

    fn head(self) -> &'s Head<L> {
        // JUSTIFICATION: nodes are behind raw pointers.
        // SAFETY: by the contract of `new` the node lives for `'s` and is not written to.
        unsafe { self.head.as_ref() }
    }

    #[inline(always)]
    fn view(self) -> View<'s, L> {
        // JUSTIFICATION: one pointer stands for four types.
        // SAFETY: all four are `repr(C)` and begin with the head; its kind is the type that was allocated.
        unsafe {
            match self.head().kind {
                Kind::N4 => View::N4(self.head.cast().as_ref()),
                Kind::N16 => View::N16(self.head.cast().as_ref()),
                Kind::N48 => View::N48(self.head.cast().as_ref()),
                Kind::N256 => View::N256(self.head.cast().as_ref()),
            }
        }
    }

    pub(super) fn birth(self) -> u64 {
        self.head().birth
    }

    pub(super) fn watch(self) -> &'s WatchCell {
        &self.head().watch
    }

    #[inline(always)]
    pub(super) fn prefix_len(self) -> usize {
        self.head().prefix_len.into()
    }

    pub(super) fn prefix(self) -> &'s [u8] {
        &self.head().prefix[..self.prefix_len()]
    }

    /// Returns the link to the leaf whose key ends here.
    #[inline(always)]
    pub(super) fn own(self) -> &'s Link<L> {
        &self.head().leaf
    }

    fn count(self) -> usize {
        self.head().count.into()
    }

    /// Returns the child for a key byte.
    #[inline(always)]
    pub(super) fn child(self, byte: u8) -> Option<&'s Link<L>> {
        match self.view() {
            View::N4(node) => node.find(byte).map(|at| &node.children[at]),
            View::N16(node) => node.find(byte).map(|at| &node.children[at]),
            View::N48(node) => match node.index[usize::from(byte)] {
                0 => None,
                at => Some(&node.children[usize::from(at) - 1]),
            },
            View::N256(node) => Some(&node.children[usize::from(byte)]).filter(|link| !link.is_empty()),
        }
    }

    /// Whether the children are stored in the order of their bytes, possibly with empty slots between them.
    #[inline(always)]
    pub(super) fn lies_in_order(self) -> bool {
        self.head().kind != Kind::N48
    }

    /// Returns the child for the greatest of these bytes that has one. The bytes must be in ascending order.
    #[inline(always)]
    pub(super) fn last_child<const M: usize>(self, bytes: [u8; M]) -> Option<&'s Link<L>> {
        match self.view() {
            View::N4(node) => node.find_last(bytes).map(|at| &node.children[at]),
            View::N16(node) => node.find_last(bytes).map(|at| &node.children[at]),
            View::N48(node) => bytes.iter().rev().find_map(|byte| match node.index[usize::from(*byte)] {
                0 => None,
                at => Some(&node.children[usize::from(at) - 1]),
            }),
            View::N256(node) => bytes
                .iter()
                .rev()
                .map(|byte| &node.children[usize::from(*byte)])
                .find(|link| !link.is_empty()),
        }
    }

    /// Returns the slots of the children from a position on; empty for nodes whose children are unordered.
    #[inline]
    pub(super) fn run_from(self, at: usize) -> &'s [Link<L>] {
        let run = self.run_before(END);
        &run[at.min(run.len())..]
    }

    /// Returns the slots of the children before a position; empty for nodes whose children are unordered.
    #[inline]
    pub(super) fn run_before(self, at: usize) -> &'s [Link<L>] {
        match self.view() {
            View::N4(node) => &node.children[..at.min(self.count())],
            View::N16(node) => &node.children[..at.min(self.count())],
            View::N48(_) => &[],
            View::N256(node) => &node.children[..at],
        }
    }

    /// Returns the first child at this position or after it, with its position, in nodes whose children are unordered.
    pub(super) fn scattered_from(self, at: usize) -> Option<(usize, &'s Link<L>)> {
        let View::N48(node) = self.view() else { return None };
        let at = (at..END).find(|at| node.index[*at] != 0)?;
        Some((at, &node.children[usize::from(node.index[at]) - 1]))
    }

    /// Returns the last child before this position, with its position, in nodes whose children are unordered.
    pub(super) fn scattered_before(self, at: usize) -> Option<(usize, &'s Link<L>)> {
        let View::N48(node) = self.view() else { return None };
        let at = (0..at).rfind(|at| node.index[*at] != 0)?;
        Some((at, &node.children[usize::from(node.index[at]) - 1]))
    }

    /// Returns the child for the smallest byte.
    pub(super) fn first(self) -> Option<&'s Link<L>> {
        match self.scattered_from(0) {
            Some((_, link)) => Some(link),
            None => self.run_from(0).iter().find(|link| !link.is_empty()),
        }
    }

    /// Returns the position of the first child with this byte or a greater one.
    pub(super) fn position(self, byte: u8) -> usize {
        match self.view() {
            View::N4(node) => node.bytes[..self.count()].partition_point(|other| *other < byte),
            View::N16(node) => node.bytes[..self.count()].partition_point(|other| *other < byte),
            View::N48(_) | View::N256(_) => usize::from(byte),
        }
    }

    /// Returns the position of the first child with a greater byte.
    pub(super) fn after(self, byte: u8) -> usize {
        byte.checked_add(1).map_or(END, |byte| self.position(byte))
    }

    /// Returns all links that are not empty.
    pub(super) fn links(self) -> impl Iterator<Item = &'s Link<L>> {
        let children = match self.view() {
            View::N48(node) => &node.children[..self.count()],
            _ => self.run_from(0),
        };
        children.iter().chain([self.own()]).filter(|link| !link.is_empty())
    }

    /// Returns a copy with another birth and no watch.
    ///
    /// # Safety
    /// As for [`Link::copy`], for all its links.
    pub(super) unsafe fn duplicate(self, birth: u64) -> NonNull<Head<L>> {
        let layout = self.head().kind.layout::<L>();
        // JUSTIFICATION: copying bytes is the fastest way to change one link of many.
        // SAFETY: both have this layout. All fields behind `leaf` are plain bytes or links, which the caller allows to
        // copy; `birth` and `watch` lie before it and are initialized below. Other threads write only to the
        // original's watch, which is not read here.
        unsafe {
            let copy = alloc(layout);
            let Some(copy) = NonNull::new(copy.cast::<Head<L>>()) else { handle_alloc_error(layout) };
            let from = std::mem::offset_of!(Head<L>, leaf);
            copy.byte_add(from)
                .cast::<u8>()
                .copy_from_nonoverlapping(self.head.byte_add(from).cast::<u8>(), layout.size() - from);
            (&raw mut (*copy.as_ptr()).watch).write(WatchCell::default());
            (&raw mut (*copy.as_ptr()).birth).write(birth);
            copy
        }
    }
}

impl<L, const N: usize> Sorted<L, N> {
    /// Returns a bitmap of the children with one of these bytes.
    #[inline(always)]
    fn matches<const M: usize>(&self, wanted: [u8; M]) -> u32 {
        let mut bytes = [0; 16];
        bytes[..N].copy_from_slice(&self.bytes);
        lanes::matches(bytes, wanted) & ((1 << self.head.count) - 1)
    }

    #[inline(always)]
    fn find(&self, byte: u8) -> Option<usize> {
        let found = self.matches([byte]);
        (found != 0).then_some(found.trailing_zeros() as usize)
    }

    #[inline(always)]
    fn find_last<const M: usize>(&self, bytes: [u8; M]) -> Option<usize> {
        self.matches(bytes).checked_ilog2().map(|at| at as usize)
    }
}
