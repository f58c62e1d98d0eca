//! The description of a table by its row type: name, keys and indexes.

use std::borrow::Borrow;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use crate::key::{IndexKey, KeyBuf, KeyParseError, PrefixOf};
use crate::query::{KeyRange, Prefix, Query};

/// A name of every table's primary index in untyped queries, besides [`TableSpec::PRIMARY`].
pub const PRIMARY: &str = "primary";

/// A type whose values are the rows of a table. `derive(Table)` generates the implementation
/// from the attributes of fields, unless keys are computed.
///
/// Rows are immutable once stored: keep `Cell`, `Mutex` and atomics out of them. See the crate's example.
pub trait TableSpec: Send + Sync + Sized + 'static {
    /// The table's name: `[a-z][a-z0-9_-]{0,30}`.
    const NAME: &'static str;

    /// The name of the primary index in untyped queries.
    const PRIMARY: &'static str = PRIMARY;

    /// Set this if any of [`indexes`](Self::indexes) is unique: inserts can then fail with a conflict, and only the
    /// fallible operations (such as [`try_insert`](crate::Writer::try_insert)) compile for the table:
    /// ```compile_fail
    /// # use statedb::*;
    /// # #[derive(Clone)] struct Service { name: String, address: u32 }
    /// const BY_ADDRESS: Index<Service, u32> = Index::unique("address", |service, keys| keys.add(&service.address));
    /// impl TableSpec for Service {
    ///     const NAME: &'static str = "services";
    ///     const UNIQUE_SECONDARY: bool = true;
    /// #   type Key<'a> = &'a str;
    /// #   fn key(&self) -> &str { &self.name }
    ///     fn indexes() -> Vec<IndexDef<Self>> { vec![BY_ADDRESS.def()] }
    /// }
    /// # let table = Db::new().table::<Service>().unwrap();
    /// table.transact(|w| w.insert(Service { name: "a".into(), address: 1 }));
    /// ```
    const UNIQUE_SECONDARY: bool = false;

    /// The type of the primary key, which is unique within the table. Borrowed from the row where it is a
    /// string: `type Key<'a> = &'a str`.
    type Key<'a>: IndexKey;

    /// Returns the row's primary key.
    fn key(&self) -> Self::Key<'_>;

    /// Returns the secondary indexes; by default none.
    fn indexes() -> Vec<IndexDef<Self>> {
        Vec::new()
    }
}

/// A secondary index of rows `T` by keys `K`, declared as a constant beside the type.
///
/// ```
/// # use statedb::{Index, Query};
/// struct Backend { id: u32, service: String, ports: Vec<u16> }
/// const BY_SERVICE: Index<Backend, str> = Index::new("service", |b, keys| keys.add(&b.service));
/// const BY_PORT: Index<Backend, u16> = Index::new("port", |b, keys| keys.extend(&b.ports)); // several keys a row
/// ```
pub struct Index<T, K: ?Sized> {
    pub(crate) name: &'static str,
    pub(crate) unique: bool,
    pub(crate) emit: fn(&T, &mut Keys<K>),
}

impl<T, K: ?Sized> Clone for Index<T, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, K: ?Sized> Copy for Index<T, K> {}

impl<T, K: IndexKey + ?Sized> Index<T, K> {
    /// Creates an index in which rows may share keys, and a row may have none, one or several.
    pub const fn new(name: &'static str, emit: fn(&T, &mut Keys<K>)) -> Self {
        Index { name, unique: false, emit }
    }

    /// Creates an index in which no two rows share a key. The table declares [`TableSpec::UNIQUE_SECONDARY`].
    pub const fn unique(name: &'static str, emit: fn(&T, &mut Keys<K>)) -> Self {
        Index { name, unique: true, emit }
    }

    /// Returns a query for the rows with this key.
    pub fn query(&self, key: &K) -> Query<T> {
        Query::new(Some(self.name), KeyBuf::of(key))
    }

    /// Returns a query for the rows whose key starts with this.
    pub fn prefix<P: PrefixOf<K> + ?Sized>(&self, start: &P) -> Prefix<T> {
        let mut key = KeyBuf::new();
        start.encode_prefix(&mut key);
        Prefix::new(Some(self.name), key)
    }

    /// Returns a query for the rows whose key is in the range: `BY_NAME.range("a".."b")`, `BY_PORT.range(80..=443)`.
    pub fn range<B: Borrow<K> + ?Sized>(&self, range: impl RangeBounds<B>) -> KeyRange<T> {
        KeyRange::new(Some(self.name), range)
    }

    /// Returns the declaration for [`TableSpec::indexes`].
    pub fn def(&self) -> IndexDef<T>
    where
        T: 'static,
        K: 'static,
    {
        IndexDef {
            name: self.name,
            unique: self.unique,
            matching: Matching::Exact,
            emit: self.emit(),
            parse: K::encode_text,
            parse_prefix: K::encode_text_prefix,
            raw: K::encode_raw,
            raw_bound: K::encode_raw_bound,
        }
    }
}

impl<T, K: ?Sized> Index<T, K> {
    /// Returns whether no two rows share a key.
    pub const fn is_unique(&self) -> bool {
        self.unique
    }
}

impl<T: 'static, K: ?Sized + 'static> Index<T, K> {
    /// Returns the index function without its key type.
    pub(crate) fn emit(&self) -> Emit<T> {
        let emit = self.emit;
        Arc::new(move |object, keys| {
            let mut sink = Keys { keys: std::mem::take(keys), marker: PhantomData };
            emit(object, &mut sink);
            *keys = sink.keys;
        })
    }
}

/// The keys of a row, as its index function adds them.
pub struct Keys<K: ?Sized> {
    pub(crate) keys: Vec<KeyBuf>,
    marker: PhantomData<fn(&K)>,
}

impl<K: IndexKey + ?Sized> Keys<K> {
    /// Adds a key. Duplicates are ignored.
    pub fn add(&mut self, key: &K) {
        self.keys.push(KeyBuf::of(key));
    }

    /// Adds all keys of a collection.
    pub fn extend<'k>(&mut self, keys: impl IntoIterator<Item = &'k K>)
    where
        K: 'k,
    {
        keys.into_iter().for_each(|key| self.add(key));
    }
}

pub(crate) type Emit<T> = Arc<dyn Fn(&T, &mut Vec<KeyBuf>) + Send + Sync>;

/// A function that appends the key, or the beginning of keys, for a text.
pub(crate) type Parse = fn(&str, &mut KeyBuf) -> Result<(), KeyParseError>;

/// A function that appends the key for bytes; returns whether such a key exists.
pub(crate) type ParseRaw = fn(&[u8], &mut KeyBuf) -> Result<bool, KeyParseError>;

/// The way in which an index matches the key of a query.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Matching {
    /// By the same key.
    Exact,
    /// By the longest prefix that covers it.
    Longest,
}

/// A secondary index without its key type, as a table holds it.
#[cfg_attr(not(feature = "untyped"), expect(dead_code, reason = "untyped queries parse keys"))]
pub struct IndexDef<T> {
    pub(crate) name: &'static str,
    pub(crate) unique: bool,
    pub(crate) matching: Matching,
    pub(crate) emit: Emit<T>,
    pub(crate) parse: Parse,
    pub(crate) parse_prefix: Parse,
    pub(crate) raw: ParseRaw,
    pub(crate) raw_bound: ParseRaw,
}

impl<T> IndexDef<T> {
    /// Replaces the content of `keys` by the keys of a row, sorted and without duplicates; no row has no keys.
    pub(crate) fn keys_into(&self, object: Option<&T>, keys: &mut Vec<KeyBuf>) {
        keys.clear();
        if let Some(object) = object {
            (self.emit)(object, keys);
        }
        if keys.len() > 1 {
            keys.sort_unstable();
            keys.dedup();
        }
    }

    /// As `keys_into`, as the index stores them: in a non-unique index a key is followed by the row's primary key.
    pub(crate) fn full_keys_into(&self, object: Option<&T>, primary: &KeyBuf, keys: &mut Vec<KeyBuf>) {
        self.keys_into(object, keys);
        if !self.unique {
            keys.iter_mut().for_each(|key| key.push(primary.as_bytes()));
        }
    }
}
