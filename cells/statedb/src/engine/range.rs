//! Double-ended iteration over leaves in key order.

mod path;

use super::leaf::Leaf;
use super::link::Link;
use path::{Path, Top};

/// A double-ended iterator over leaves with adjacent keys; yields each leaf once.
pub(crate) type Range<'s, L> = Ends<'s, L, Path<'s, L>>;

/// A double-ended iterator over the leaves between two cursors.
pub(crate) struct Ends<'s, L, C: Cursor<'s, L>> {
    /// The container, from which the back cursor is created on demand; none if the range is empty.
    top: Option<C::Top>,
    front: C,
    /// The leaf that `next` returns; none at the end.
    next: Option<&'s L>,
    /// The leaf that `next_back` returns. Known from the start if there is an upper bound, otherwise from the first
    /// call of `next_back`.
    last: Option<&'s L>,
    back: Option<Box<C>>,
}

/// A position in a sequence of leaves, which moves in one direction only.
pub(crate) trait Cursor<'s, L> {
    /// The container that the cursor moves in.
    type Top: Copy;

    /// Returns a cursor behind the last leaf.
    fn at_end(top: Self::Top) -> Self;

    /// Moves forwards; returns the leaf that was passed.
    fn forwards(&mut self) -> Option<&'s L>;

    /// Moves backwards; returns the leaf that was passed.
    fn backwards(&mut self) -> Option<&'s L>;
}

impl<'s, L: Leaf> Range<'s, L> {
    pub(super) fn empty() -> Self {
        Ends { top: None, front: Path::new(), next: None, last: None, back: None }
    }

    /// Returns all leaves below a link.
    pub(super) fn below(top: &'s Link<L>) -> Self {
        let (front, next) = Path::at_start(top);
        Ends { top: Some(Top(top)), front, next, last: None, back: None }
    }

    /// Returns the leaves below a link with this key or a greater one.
    pub(super) fn from(top: &'s Link<L>, key: &[u8]) -> Self {
        let (front, next) = Path::from(top, key);
        Ends { top: Some(Top(top)), front, next, last: None, back: None }
    }

    /// Ends the range before `key`.
    pub(super) fn until(self, key: &[u8]) -> Self {
        let Some((Top(top), next)) = self.top.zip(self.next) else { return self };
        if next.with_key(|first| first >= key) {
            return Self::empty();
        }
        let (back, last) = Path::before(top, key);
        Ends { last, back: Some(Box::new(back)), ..self }
    }
}

impl<'s, L, C: Cursor<'s, L>> Ends<'s, L, C> {
    /// Returns the leaves from a cursor to the end.
    pub(super) fn new(top: Option<C::Top>, mut front: C) -> Self {
        let next = front.forwards();
        Ends { top, front, next, last: None, back: None }
    }

    #[inline(always)]
    fn is_last(&self, leaf: &'s L) -> bool {
        self.last.is_some_and(|last| std::ptr::eq(last, leaf))
    }
}

impl<'s, L, C: Cursor<'s, L>> Iterator for Ends<'s, L, C> {
    type Item = &'s L;

    #[inline]
    fn next(&mut self) -> Option<&'s L> {
        let leaf = self.next?;
        self.next = if self.is_last(leaf) { None } else { self.front.forwards() };
        Some(leaf)
    }

    #[inline]
    fn fold<B, F: FnMut(B, &'s L) -> B>(mut self, init: B, mut f: F) -> B {
        let mut all = init;
        let mut next = self.next;
        while let Some(leaf) = next {
            all = f(all, leaf);
            next = if self.is_last(leaf) { None } else { self.front.forwards() };
        }
        all
    }
}

impl<'s, L, C: Cursor<'s, L>> DoubleEndedIterator for Ends<'s, L, C> {
    #[inline]
    fn next_back(&mut self) -> Option<&'s L> {
        let front = self.next?;
        let leaf = match self.last {
            Some(last) => last,
            None => {
                let mut back = C::at_end(self.top?);
                // A tree of a single leaf has no nodes, so the back cursor yields nothing.
                let last = back.backwards().unwrap_or(front);
                self.back = Some(Box::new(back));
                last
            }
        };
        if std::ptr::eq(front, leaf) {
            self.next = None;
        } else {
            self.last = self.back.as_mut()?.backwards();
        }
        Some(leaf)
    }
}
