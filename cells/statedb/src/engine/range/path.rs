//! The path from the root of a tree to a leaf.

use super::Cursor;
use crate::engine::leaf::Leaf;
use crate::engine::link::{Child, Link};
use crate::engine::node::{END, NodeRef};
use crate::engine::tree::common;

/// A cursor between two leaves of a tree: the stack of nodes above it.
pub(crate) struct Path<'s, L> {
    /// The unvisited children of the deepest node, if its children are ordered.
    run: std::slice::Iter<'s, Link<L>>,
    depth: usize,
    near: [Option<Frame<'s, L>>; NEAR],
    far: Vec<Frame<'s, L>>,
}

/// The number of levels that are stored inline; deeper ones need an allocation.
const NEAR: usize = 12;

/// A node and the position of the next child: forwards, the first child at it or after it; backwards, the first child
/// before it.
struct Frame<'s, L> {
    node: NodeRef<'s, L>,
    at: u16,
}

impl<L> Clone for Frame<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Frame<'_, L> {}

/// The root of the subtree that a path walks.
pub(crate) struct Top<'s, L>(pub(super) &'s Link<L>);

impl<L> Clone for Top<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Top<'_, L> {}

impl<'s, L> Path<'s, L> {
    pub(super) fn new() -> Self {
        Path { run: [].iter(), depth: 0, near: [const { None }; NEAR], far: Vec::new() }
    }

    fn push(&mut self, node: NodeRef<'s, L>, at: usize) {
        let frame = Frame { node, at: at as u16 };
        match self.near.get_mut(self.depth) {
            Some(place) => *place = Some(frame),
            None => self.far.push(frame),
        }
        self.depth += 1;
    }

    fn pop(&mut self) {
        self.depth -= 1;
        if self.depth >= NEAR {
            self.far.pop();
        }
    }

    #[inline]
    fn last(&mut self) -> Option<&mut Frame<'s, L>> {
        match self.depth.checked_sub(1)? {
            at if at < NEAR => self.near[at].as_mut(),
            _ => self.far.last_mut(),
        }
    }

    /// Continues with the unvisited children of the deepest node, as recorded in its frame.
    fn resume_forwards(&mut self) {
        self.run = self.last().map_or([].iter(), |frame| frame.node.run_from(frame.at.into()).iter());
    }

    fn resume_backwards(&mut self) {
        self.run = self.last().map_or([].iter(), |frame| frame.node.run_before(frame.at.into()).iter());
    }

    /// Descends into a node on the way forwards; returns the node's own leaf, which sorts before its children.
    fn enter(&mut self, node: NodeRef<'s, L>) -> Option<&'s L> {
        let ahead = self.run.len();
        if let Some(frame) = self.last()
            && frame.node.lies_in_order()
        {
            frame.at = (frame.node.run_from(0).len() - ahead) as u16;
        }
        self.push(node, 0);
        self.run = node.run_from(0).iter();
        node.own().as_leaf()
    }

    /// Descends into a node on the way backwards, behind its last child.
    fn enter_last(&mut self, node: NodeRef<'s, L>) {
        let ahead = self.run.len();
        if let Some(frame) = self.last()
            && frame.node.lies_in_order()
        {
            frame.at = ahead as u16;
        }
        self.push(node, END);
        self.run = node.run_before(END).iter();
    }

    /// Returns the first leaf below a link and the path behind it.
    pub(super) fn at_start(top: &'s Link<L>) -> (Self, Option<&'s L>) {
        let mut path = Path::new();
        let first = match top.get() {
            Child::Nothing => None,
            Child::Leaf(leaf) => Some(leaf),
            Child::Node(node) => path.enter(node).or_else(|| path.forwards()),
        };
        (path, first)
    }
}

impl<'s, L: Leaf> Path<'s, L> {
    /// Returns the first leaf with this key or a greater one, and the path behind it.
    pub(super) fn from(top: &'s Link<L>, key: &[u8]) -> (Self, Option<&'s L>) {
        let mut path = Path::new();
        let mut link = top;
        let mut rest = key;
        let found = loop {
            match link.get() {
                Child::Nothing => break None,
                Child::Leaf(leaf) => break leaf.with_key(|found| found >= key).then_some(leaf),
                Child::Node(node) => {
                    let shared = common(node.prefix(), rest);
                    let greater = node.prefix().get(shared).zip(rest.get(shared)).map(|(a, b)| a > b);
                    match (greater, rest.get(shared)) {
                        (Some(false), _) => break None,
                        (Some(true), _) | (None, None) => {
                            path.push(node, 0);
                            break node.own().as_leaf();
                        }
                        (None, Some(byte)) => {
                            path.push(node, node.after(*byte));
                            match node.child(*byte) {
                                Some(child) => link = child,
                                None => break None,
                            }
                            rest = &rest[shared + 1..];
                        }
                    }
                }
            }
        };
        path.resume_forwards();
        let first = found.or_else(|| path.forwards());
        (path, first)
    }

    /// Returns the last leaf with a smaller key, and the path before it.
    pub(super) fn before(top: &'s Link<L>, key: &[u8]) -> (Self, Option<&'s L>) {
        let mut path = Path::new();
        let mut link = top;
        let mut rest = key;
        let found = loop {
            match link.get() {
                Child::Nothing => break None,
                Child::Leaf(leaf) => break leaf.with_key(|found| found < key).then_some(leaf),
                Child::Node(node) => {
                    let shared = common(node.prefix(), rest);
                    let smaller = node.prefix().get(shared).zip(rest.get(shared)).map(|(a, b)| a < b);
                    match (smaller, rest.get(shared)) {
                        (Some(true), _) => {
                            path.push(node, END);
                            break None;
                        }
                        (Some(false), _) | (None, None) => break None,
                        (None, Some(byte)) => {
                            path.push(node, node.position(*byte));
                            match node.child(*byte) {
                                Some(child) => link = child,
                                None => break None,
                            }
                            rest = &rest[shared + 1..];
                        }
                    }
                }
            }
        };
        path.resume_backwards();
        let last = found.or_else(|| path.backwards());
        (path, last)
    }
}

impl<'s, L> Cursor<'s, L> for Path<'s, L> {
    type Top = Top<'s, L>;

    fn at_end(Top(top): Top<'s, L>) -> Self {
        let mut path = Path::new();
        if let Child::Node(node) = top.get() {
            path.enter_last(node);
        }
        path
    }

    #[inline(always)]
    fn forwards(&mut self) -> Option<&'s L> {
        match self.run.next().map(Link::get) {
            Some(Child::Leaf(leaf)) => Some(leaf),
            Some(Child::Node(node)) => self.enter(node).or_else(|| self.next_leaf()),
            Some(Child::Nothing) | None => self.next_leaf(),
        }
    }

    #[inline(always)]
    fn backwards(&mut self) -> Option<&'s L> {
        match self.run.next_back().map(Link::get) {
            Some(Child::Leaf(leaf)) => Some(leaf),
            Some(Child::Node(node)) => {
                self.enter_last(node);
                self.previous_leaf()
            }
            Some(Child::Nothing) | None => self.previous_leaf(),
        }
    }
}

/// The moves that are not from one leaf to the next one in its node. They are functions of their own: with them in line,
/// whether the compiler inlines the frequent move as well changes with the rest of the crate, which is 1.7 times the time of
/// an iteration.
impl<'s, L> Path<'s, L> {
    #[inline(never)]
    fn next_leaf(&mut self) -> Option<&'s L> {
        loop {
            let met = match self.run.next() {
                Some(link) => link,
                None => {
                    let frame = self.last()?;
                    match frame.node.scattered_from(frame.at.into()) {
                        Some((at, link)) => {
                            frame.at = at as u16 + 1;
                            link
                        }
                        None => {
                            self.pop();
                            self.resume_forwards();
                            continue;
                        }
                    }
                }
            };
            match met.get() {
                Child::Nothing => {}
                Child::Leaf(leaf) => return Some(leaf),
                Child::Node(node) => {
                    let own = self.enter(node);
                    if own.is_some() {
                        return own;
                    }
                }
            }
        }
    }

    #[inline(never)]
    fn previous_leaf(&mut self) -> Option<&'s L> {
        loop {
            let met = match self.run.next_back() {
                Some(link) => link,
                None => {
                    let frame = self.last()?;
                    match frame.node.scattered_before(frame.at.into()) {
                        Some((at, link)) => {
                            frame.at = at as u16;
                            link
                        }
                        None => {
                            let own = frame.node.own().as_leaf();
                            self.pop();
                            self.resume_backwards();
                            match own {
                                Some(_) => return own,
                                None => continue,
                            }
                        }
                    }
                }
            };
            match met.get() {
                Child::Nothing => {}
                Child::Leaf(leaf) => return Some(leaf),
                Child::Node(node) => self.enter_last(node),
            }
        }
    }
}
