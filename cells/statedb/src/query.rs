//! Questions to a table, made by functions of the row type so that indexes stay private.

use std::marker::PhantomData;

use crate::key::{KeyBuf, PrefixOf};
use crate::spec::TableSpec;

/// Rows with one key of one index.
///
/// Types offer them by functions, `Device::by_name("eth0")`, built from [`Query::primary`] or
/// [`Index::query`](crate::Index::query).
pub struct Query<T> {
    /// None is the primary index.
    pub(crate) index: Option<&'static str>,
    pub(crate) key: KeyBuf,
    marker: PhantomData<fn(&T)>,
}

/// Rows whose keys of one index start alike.
pub struct Prefix<T> {
    pub(crate) index: Option<&'static str>,
    pub(crate) key: KeyBuf,
    marker: PhantomData<fn(&T)>,
}

impl<T> Query<T> {
    pub(crate) fn new(index: Option<&'static str>, key: KeyBuf) -> Self {
        Query { index, key, marker: PhantomData }
    }
}

impl<T: TableSpec> Query<T> {
    /// The row with this primary key.
    pub fn primary(key: T::Key<'_>) -> Self {
        Query::new(None, KeyBuf::of(&key))
    }

    /// The row with this encoded primary key: what `KeyBuf::of(&row.key())` gives.
    pub fn raw_primary(key: KeyBuf) -> Self {
        Query::new(None, key)
    }

    /// The row with the same primary key as this one.
    pub fn of(object: &T) -> Self {
        Query::primary(object.key())
    }
}

impl<T> Prefix<T> {
    pub(crate) fn new(index: Option<&'static str>, key: KeyBuf) -> Self {
        Prefix { index, key, marker: PhantomData }
    }

    /// The rows whose primary key starts with this.
    pub fn primary<P: PrefixOf<T::Key<'static>> + ?Sized>(start: &P) -> Self
    where
        T: TableSpec,
    {
        let mut key = KeyBuf::new();
        start.encode_prefix(&mut key);
        Prefix::new(None, key)
    }

    /// The rows whose encoded primary key starts with this: the first parts of a key of several.
    pub fn raw_primary(start: KeyBuf) -> Self {
        Prefix::new(None, start)
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

/// A [`Query`] by value or by reference.
pub trait AsQuery<T> {
    /// The query.
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
