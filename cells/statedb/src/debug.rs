//! `Debug` of queries, readers and writers: what they are about, not the rows behind them.

use std::fmt::{Debug, Formatter, Result};

use crate::changes::Changes;
use crate::init::Initializer;
use crate::key::KeyBuf;
use crate::lpm::Lpm;
use crate::query::{KeyRange, Prefix, Query};
use crate::rows::Rows;
use crate::spec::{Index, IndexDef, Keys, PRIMARY, TableSpec};
use crate::txn::Txn;
use crate::writer::Writer;

/// Writes a query: the name of its index and the encoded key.
fn query(f: &mut Formatter<'_>, name: &str, index: Option<&str>, key: &KeyBuf) -> Result {
    f.debug_struct(name).field("index", &index.unwrap_or(PRIMARY)).field("key", key).finish()
}

impl<T> Debug for Query<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        query(f, "Query", self.index, &self.key)
    }
}

impl<T> Debug for Prefix<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        query(f, "Prefix", self.index, &self.key)
    }
}

impl<T> Debug for KeyRange<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let index = self.index.unwrap_or(PRIMARY);
        let (start, end) = (&self.start, &self.end);
        f.debug_struct("KeyRange").field("index", &index).field("start", start).field("end", end).finish()
    }
}

impl<T, K: ?Sized> Debug for Index<T, K> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Index { name, unique, .. } = self;
        f.debug_struct("Index").field("name", name).field("unique", unique).finish_non_exhaustive()
    }
}

impl<T> Debug for IndexDef<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let IndexDef { name, unique, .. } = self;
        f.debug_struct("IndexDef").field("name", name).field("unique", unique).finish_non_exhaustive()
    }
}

impl<K: ?Sized> Debug for Keys<K> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_tuple("Keys").field(&self.keys).finish()
    }
}

impl<K: ?Sized> Debug for Lpm<K> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str("Lpm")
    }
}

impl<T> Debug for Rows<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Rows").finish_non_exhaustive()
    }
}

impl<T> Debug for Initializer<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Initializer { table, name, .. } = self;
        f.debug_struct("Initializer").field("table", table).field("name", name).finish_non_exhaustive()
    }
}

impl<T: TableSpec> Debug for Changes<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Changes").field("table", &T::NAME).field("seen", &self.seen()).finish_non_exhaustive()
    }
}

impl<T: TableSpec> Debug for Writer<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let revision = self.revision();
        f.debug_struct("Writer").field("table", &T::NAME).field("revision", &revision).finish_non_exhaustive()
    }
}

impl<W> Debug for Txn<'_, W> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Txn").finish_non_exhaustive()
    }
}

#[cfg(feature = "untyped")]
impl Debug for crate::any::AnyChanges {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("AnyChanges").finish_non_exhaustive()
    }
}

#[cfg(feature = "hive")]
impl<T: crate::TableDisplay> Debug for crate::Reflector<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Reflector").field("table", &T::NAME).finish_non_exhaustive()
    }
}

#[cfg(all(feature = "hive", feature = "unstable"))]
impl<In: crate::TableDisplay, Out: crate::TableDisplay> Debug for crate::Derived<In, Out> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Derived").field("from", &In::NAME).field("table", &Out::NAME).finish_non_exhaustive()
    }
}
