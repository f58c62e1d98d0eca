//! Walking a tree in the order of its keys, from both ends.

use super::leaf::Leaf;
use super::link::{Child, Link};
use super::node::{END, NodeRef};
use super::tree::common;

/// Leaves with neighbouring keys. Each comes once, whichever end it is taken from.
pub(crate) type Range<'s, L> = Ends<'s, L, Path<'s, L>>;

/// What lies between a cursor and the end of what it walks, taken from both ends.
pub(crate) struct Ends<'s, L, C: Cursor<'s, L>> {
    /// Where the end is; none if there is nothing.
    top: Option<C::Top>,
    front: C,
    /// The leaf that comes next from the front; none at the end.
    next: Option<&'s L>,
    /// The same from the back, once somebody has asked.
    back: Option<Box<(C, &'s L)>>,
}

/// A place in an order of leaves.
pub(crate) trait Cursor<'s, L> {
    /// That which has an end.
    type Top: Copy;

    /// Behind the last leaf.
    fn at_end(top: Self::Top) -> Self;

    /// The next leaf.
    fn forwards(&mut self) -> Option<&'s L>;

    /// The leaf before.
    fn backwards(&mut self) -> Option<&'s L>;
}

/// The way from the top to a leaf.
pub(crate) struct Path<'s, L> {
    depth: usize,
    near: [Option<Frame<'s, L>>; NEAR],
    far: Vec<Frame<'s, L>>,
}

/// So many levels need no allocation.
const NEAR: usize = 12;

/// A node, and the position of the next child: that one or the first after it on the way forwards, the first before it
/// on the way backwards.
struct Frame<'s, L> {
    node: NodeRef<'s, L>,
    at: u16,
}

impl<L> Clone for Top<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Top<'_, L> {}

impl<L> Clone for Frame<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Frame<'_, L> {}

impl<'s, L> Path<'s, L> {
    fn new() -> Self {
        Path { depth: 0, near: [const { None }; NEAR], far: Vec::new() }
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

    /// Enters what a link holds, at its first leaf, which it gives if it is found at once.
    #[inline]
    fn enter(&mut self, link: &'s Link<L>) -> Option<&'s L> {
        match link.get() {
            Child::Nothing => None,
            Child::Leaf(leaf) => Some(leaf),
            Child::Node(node) => {
                self.push(node, 0);
                node.own().as_leaf()
            }
        }
    }
}

impl<'s, L> Cursor<'s, L> for Path<'s, L> {
    type Top = Top<'s, L>;

    fn at_end(Top(top): Top<'s, L>) -> Self {
        let mut path = Path::new();
        if let Child::Node(node) = top.get() {
            path.push(node, END);
        }
        path
    }

    #[inline]
    fn forwards(&mut self) -> Option<&'s L> {
        loop {
            let frame = self.last()?;
            match frame.node.first_from(frame.at.into()) {
                None => self.pop(),
                Some((at, link)) => {
                    frame.at = at as u16 + 1;
                    let found = self.enter(link);
                    if found.is_some() {
                        return found;
                    }
                }
            }
        }
    }

    fn backwards(&mut self) -> Option<&'s L> {
        loop {
            let frame = self.last()?;
            match frame.node.last_before(frame.at.into()) {
                None => {
                    let own = frame.node.own().as_leaf();
                    self.pop();
                    if own.is_some() {
                        return own;
                    }
                }
                Some((at, link)) => {
                    frame.at = at as u16;
                    match link.get() {
                        Child::Nothing => {}
                        Child::Leaf(leaf) => return Some(leaf),
                        Child::Node(node) => self.push(node, END),
                    }
                }
            }
        }
    }
}

/// Everything below a link.
pub(crate) struct Top<'s, L>(&'s Link<L>);

impl<'s, L: Leaf> Range<'s, L> {
    pub(super) fn empty() -> Self {
        Ends { top: None, front: Path::new(), next: None, back: None }
    }

    /// Everything below a link.
    pub(super) fn below(top: &'s Link<L>) -> Self {
        let mut front = Path::new();
        let next = front.enter(top).or_else(|| front.forwards());
        Ends { top: Some(Top(top)), front, next, back: None }
    }

    /// What is below a link and has this key or a greater one.
    pub(super) fn from(top: &'s Link<L>, key: &[u8]) -> Self {
        let mut front = Path::new();
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
                        (Some(true), _) | (None, None) => break front.enter(link),
                        (None, Some(byte)) => {
                            front.push(node, node.after(*byte));
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
        let next = found.or_else(|| front.forwards());
        Ends { top: Some(Top(top)), front, next, back: None }
    }
}

impl<'s, L: Leaf> Range<'s, L> {
    /// What is below a link and has a key from `from` on and less than `to`.
    pub(super) fn between(top: &'s Link<L>, from: &[u8], to: &[u8]) -> Self {
        let mut range = Range::from(top, from);
        let mut back = Path::before(top, to);
        let last = match top.as_leaf() {
            Some(leaf) => Some(leaf).filter(|leaf| leaf.with_key(|key| key < to)),
            None => back.backwards(),
        };
        match range.next.zip(last) {
            Some((first, last)) if first.with_key(|first| last.with_key(|last| first <= last)) => {
                range.back = Some(Box::new((back, last)));
                range
            }
            _ => Range::empty(),
        }
    }
}

impl<'s, L: Leaf> Path<'s, L> {
    /// Behind the last leaf below a link whose key is less than this.
    fn before(top: &'s Link<L>, key: &[u8]) -> Self {
        let mut path = Path::new();
        let (mut link, mut rest) = (top, key);
        while let Child::Node(node) = link.get() {
            let shared = common(node.prefix(), rest);
            match (node.prefix().get(shared), rest.get(shared)) {
                (Some(here), Some(there)) if here < there => {
                    path.push(node, END);
                    break;
                }
                (Some(_), _) | (None, None) => break,
                (None, Some(byte)) => {
                    let after = node.after(*byte);
                    let Some(child) = node.child(*byte) else {
                        path.push(node, after);
                        break;
                    };
                    let less = child.as_leaf().is_some_and(|leaf| leaf.with_key(|found| found < key));
                    path.push(node, if less { after } else { after - 1 });
                    (link, rest) = (child, &rest[shared + 1..]);
                }
            }
        }
        path
    }
}

impl<'s, L, C: Cursor<'s, L>> Ends<'s, L, C> {
    /// From a cursor to the end.
    pub(super) fn new(top: Option<C::Top>, mut front: C) -> Self {
        let next = front.forwards();
        Ends { top, front, next, back: None }
    }
}

impl<'s, L, C: Cursor<'s, L>> Iterator for Ends<'s, L, C> {
    type Item = &'s L;

    #[inline]
    fn next(&mut self) -> Option<&'s L> {
        let leaf = self.next?;
        let met = self.back.as_ref().is_some_and(|back| std::ptr::eq(back.1, leaf));
        self.next = if met { None } else { self.front.forwards() };
        Some(leaf)
    }
}

impl<'s, L, C: Cursor<'s, L>> DoubleEndedIterator for Ends<'s, L, C> {
    fn next_back(&mut self) -> Option<&'s L> {
        let front = self.next?;
        if self.back.is_none() {
            let mut cursor = C::at_end(self.top?);
            // A single leaf has no path.
            let last = cursor.backwards().unwrap_or(front);
            self.back = Some(Box::new((cursor, last)));
        }
        let (cursor, last) = &mut **self.back.as_mut()?;
        let leaf = *last;
        if std::ptr::eq(front, leaf) {
            self.next = None;
        } else {
            *last = cursor.backwards()?;
        }
        Some(leaf)
    }
}
