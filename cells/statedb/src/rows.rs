//! The rows of a query.

use std::collections::HashSet;

use crate::engine::{Alias, Keyed, Range, RevisionRange};
use crate::obj::Obj;

/// An iterator over rows of a snapshot or transaction, in the order of the queried index; `.rev()` reverses it.
///
/// A row that matches by several of its keys is returned once.
#[must_use = "iterators are lazy"]
pub struct Rows<'s, T> {
    source: Source<'s, T>,
    /// The rows returned so far, recorded if a row can have several keys.
    seen: Option<HashSet<usize>>,
}

enum Source<'s, T> {
    One(Option<&'s Obj<T>>),
    Primary(Range<'s, Obj<T>>),
    Keyed(Range<'s, Keyed<T>>),
    Revision(RevisionRange<'s, Obj<T>>),
}

impl<'s, T> Rows<'s, T> {
    pub(crate) fn one(row: Option<&'s Obj<T>>) -> Self {
        Rows { source: Source::One(row), seen: None }
    }

    pub(crate) fn primary(range: Range<'s, Obj<T>>) -> Self {
        Rows { source: Source::Primary(range), seen: None }
    }

    pub(crate) fn keyed(range: Range<'s, Keyed<T>>, dedup: bool) -> Self {
        Rows { source: Source::Keyed(range), seen: dedup.then(HashSet::new) }
    }

    pub(crate) fn by_revision(range: RevisionRange<'s, Obj<T>>) -> Self {
        Rows { source: Source::Revision(range), seen: None }
    }

    fn is_new(&mut self, row: &Obj<T>) -> bool {
        self.seen.as_mut().is_none_or(|seen| seen.insert(row.id()))
    }
}

impl<'s, T> Iterator for Rows<'s, T> {
    type Item = &'s Obj<T>;

    #[inline]
    fn next(&mut self) -> Option<&'s Obj<T>> {
        loop {
            let row = match &mut self.source {
                Source::One(row) => row.take(),
                Source::Primary(range) => range.next(),
                Source::Keyed(range) => range.next().map(Keyed::row),
                Source::Revision(range) => range.next().map(Alias::get),
            }?;
            if self.is_new(row) {
                return Some(row);
            }
        }
    }

    /// Matches on the source once, not for each row.
    #[inline]
    fn fold<B, F: FnMut(B, &'s Obj<T>) -> B>(mut self, init: B, mut f: F) -> B {
        if self.seen.is_some() {
            return std::iter::from_fn(|| self.next()).fold(init, f);
        }
        match self.source {
            Source::One(row) => row.into_iter().fold(init, f),
            Source::Primary(range) => range.fold(init, f),
            Source::Keyed(range) => range.fold(init, |all, row| f(all, row.row())),
            Source::Revision(range) => range.fold(init, |all, row| f(all, row.get())),
        }
    }
}

impl<T> std::iter::FusedIterator for Rows<'_, T> {}

impl<T> DoubleEndedIterator for Rows<'_, T> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        loop {
            let row = match &mut self.source {
                Source::One(row) => row.take(),
                Source::Primary(range) => range.next_back(),
                Source::Keyed(range) => range.next_back().map(Keyed::row),
                Source::Revision(range) => range.next_back().map(Alias::get),
            }?;
            if self.is_new(row) {
                return Some(row);
            }
        }
    }
}
