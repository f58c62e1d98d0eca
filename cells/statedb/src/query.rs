//! Queries of a table. Functions of the row type create them, so that indexes stay private.

use std::borrow::Borrow;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use crate::key::{IndexKey, KeyBuf, PrefixOf};
use crate::spec::TableSpec;

/// A query for the rows with one key of one index.
///
/// Row types provide functions for their indexes, such as `Device::by_name("eth0")`, built from [`Query::primary`] or
/// [`Index::query`](crate::Index::query).
pub struct Query<T> {
    /// The name of the index; none is the primary.
    pub(crate) index: Option<&'static str>,
    pub(crate) key: KeyBuf,
    marker: PhantomData<fn(&T)>,
}

/// A query for the rows whose key of one index starts with a prefix.
pub struct Prefix<T> {
    pub(crate) index: Option<&'static str>,
    pub(crate) key: KeyBuf,
    marker: PhantomData<fn(&T)>,
}

/// A query for the rows whose key of one index is between two bounds, each of which is inclusive, exclusive or missing.
///
/// Made of ranges, `1..5`, `"a"..="f"`, or pairs of [`Bound`]s, by [`Index::range`](crate::Index::range) and
/// [`KeyRange::primary`]. A range that ends before it begins has no rows.
pub struct KeyRange<T> {
    pub(crate) index: Option<&'static str>,
    /// The inclusive lower bound of the keys in the index, which may have the primary key behind them.
    pub(crate) start: KeyBuf,
    /// The exclusive upper bound.
    pub(crate) end: Option<KeyBuf>,
    marker: PhantomData<fn(&T)>,
}

impl<T> Query<T> {
    pub(crate) fn new(index: Option<&'static str>, key: KeyBuf) -> Self {
        Query { index, key, marker: PhantomData }
    }
}

impl<T: TableSpec> Query<T> {
    /// Queries the row with this primary key.
    pub fn primary(key: T::Key<'_>) -> Self {
        Query::new(None, KeyBuf::of(&key))
    }

    /// Queries the row with this encoded primary key, `KeyBuf::of(&row.key())`.
    pub fn raw_primary(key: KeyBuf) -> Self {
        Query::new(None, key)
    }

    /// Queries the row with the same primary key as this one.
    pub fn of(object: &T) -> Self {
        Query::primary(object.key())
    }
}

impl<T> Prefix<T> {
    pub(crate) fn new(index: Option<&'static str>, key: KeyBuf) -> Self {
        Prefix { index, key, marker: PhantomData }
    }

    /// Queries the rows whose primary key starts with this.
    pub fn primary<P: PrefixOf<T::Key<'static>> + ?Sized>(start: &P) -> Self
    where
        T: TableSpec,
    {
        let mut key = KeyBuf::new();
        start.encode_prefix(&mut key);
        Prefix::new(None, key)
    }

    /// Queries the rows whose encoded primary key starts with this: the first parts of a key of several parts.
    pub fn raw_primary(start: KeyBuf) -> Self {
        Prefix::new(None, start)
    }
}

impl<T> KeyRange<T> {
    pub(crate) fn new<K: IndexKey + ?Sized, B: Borrow<K> + ?Sized>(
        index: Option<&'static str>,
        range: impl RangeBounds<B>,
    ) -> Self {
        let key = |key: &B| KeyBuf::of(key.borrow());
        // No key is a prefix of another: entries that start with a key have exactly this key, with the primary key
        // behind it in a non-unique index. `after` skips all of them.
        let start = match range.start_bound() {
            Bound::Unbounded => Some(KeyBuf::new()),
            Bound::Included(start) => Some(key(start)),
            Bound::Excluded(start) => key(start).after(),
        };
        let end = match range.end_bound() {
            Bound::Unbounded => None,
            Bound::Included(end) => key(end).after(),
            Bound::Excluded(end) => Some(key(end)),
        };
        match start {
            Some(start) => KeyRange { index, start, end, marker: PhantomData },
            // No key is greater than the excluded start: an empty range, since no key is smaller than the empty key.
            None => KeyRange { index, start: KeyBuf::new(), end: Some(KeyBuf::new()), marker: PhantomData },
        }
    }

    /// Queries the rows whose primary key is in the range.
    pub fn primary<'k>(range: impl RangeBounds<T::Key<'k>>) -> Self
    where
        T: TableSpec,
    {
        KeyRange::new::<T::Key<'k>, T::Key<'k>>(None, range)
    }

    /// Returns the common prefix of all keys in the range.
    pub(crate) fn common(&self) -> KeyBuf {
        let (start, end) = (self.start.as_bytes(), self.end.as_ref().map_or(&[][..], KeyBuf::as_bytes));
        let shared = start.iter().zip(end).take_while(|(a, b)| a == b).count();
        let mut common = KeyBuf::new();
        common.push(&start[..shared]);
        common
    }
}

impl<T> Clone for KeyRange<T> {
    fn clone(&self) -> Self {
        KeyRange { index: self.index, start: self.start.clone(), end: self.end.clone(), marker: PhantomData }
    }
}

impl<T> Clone for Query<T> {
    fn clone(&self) -> Self {
        Query { index: self.index, key: self.key.clone(), marker: PhantomData }
    }
}

impl<T> Clone for Prefix<T> {
    fn clone(&self) -> Self {
        Prefix { index: self.index, key: self.key.clone(), marker: PhantomData }
    }
}

mod sealed {
    pub trait Sealed {}
}

impl<T> sealed::Sealed for Query<T> {}
impl<T> sealed::Sealed for &Query<T> {}

/// A [`Query`] by value or by reference.
pub trait AsQuery<T>: sealed::Sealed {
    /// Returns the query.
    fn as_query(&self) -> &Query<T>;
}

impl<T> AsQuery<T> for Query<T> {
    fn as_query(&self) -> &Query<T> {
        self
    }
}

impl<T> AsQuery<T> for &Query<T> {
    fn as_query(&self) -> &Query<T> {
        self
    }
}
