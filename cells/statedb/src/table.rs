//! Handles to a table: the read handle and the write handle.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;

use crate::changes::{Changes, Trackers};
use crate::db::{Db, ReadSource, Snapshot};
use crate::error::{Error, NotInTime};
use crate::locks::LongWrites;
use crate::metrics::Handles;
use crate::obj::Obj;
use crate::query::{AsQuery, KeyRange, Prefix};
use crate::rows::Rows;
use crate::spec::{IndexDef, TableSpec};
use crate::txn::{TableTxn, Written};
use crate::version::Version;
use crate::watch::Watch;
use crate::writer::Writer;

/// The read handle of a table, which cells export. Cheap to clone.
///
/// All reads take a source: a [`Snapshot`] or a transaction. The `*_watch` variants also return a [`Watch`] that
/// closes when the result may have changed.
pub struct Table<T: TableSpec> {
    pub(crate) db: Db,
    pub(crate) meta: Arc<TableMeta<T>>,
}

/// The write handle of a table, which its owner keeps private. Dereferences to [`Table`](struct@Table) for reads.
pub struct RwTable<T: TableSpec>(pub(crate) Table<T>);

pub(crate) struct TableMeta<T> {
    pub(crate) db: u64,
    pub(crate) position: usize,
    pub(crate) indexes: Vec<IndexDef<T>>,
    /// Held for the duration of a write transaction: one at a time.
    pub(crate) lock: Mutex<()>,
    pub(crate) trackers: Arc<Mutex<Trackers>>,
    pub(crate) next_initializer: AtomicU64,
    pub(crate) long_writes: LongWrites,
    pub(crate) last_write: Mutex<Option<Written>>,
    pub(crate) handles: Arc<Handles>,
}

impl<T: TableSpec> TableMeta<T> {
    pub(crate) fn new(
        db: u64,
        handles: &Arc<Handles>,
        position: usize,
        known: &[&'static str],
    ) -> Result<Self, Error> {
        let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if !T::NAME.starts_with(|c: char| c.is_ascii_lowercase())
            || !T::NAME.chars().all(valid)
            || T::NAME.len() > 31
        {
            return Err(Error::InvalidTableName { name: T::NAME });
        }
        if known.contains(&T::NAME) {
            return Err(Error::DuplicateTable { name: T::NAME });
        }
        let indexes = T::indexes();
        let mut names = HashSet::from(["", T::PRIMARY]);
        for index in &indexes {
            if index.name.starts_with("__") || !names.insert(index.name) {
                return Err(Error::InvalidIndexName { table: T::NAME, index: index.name });
            }
            if index.unique && !T::UNIQUE_SECONDARY {
                return Err(Error::UndeclaredUnique { table: T::NAME, index: index.name });
            }
        }
        Ok(TableMeta {
            db,
            position,
            indexes,
            lock: Mutex::default(),
            trackers: Arc::new(Mutex::new(Trackers::new())),
            next_initializer: AtomicU64::new(0),
            long_writes: LongWrites::default(),
            last_write: Mutex::default(),
            handles: handles.clone(),
        })
    }

    /// Returns the version of this table in a source; none if the source is older than the table.
    pub(crate) fn version<'s>(&self, source: &'s (impl ReadSource + ?Sized)) -> Option<&'s Version<T>> {
        assert_eq!(source.database(), self.db, "table `{}` belongs to another database", T::NAME);
        source.any_version(self.position)?.downcast()
    }
}

impl<T: TableSpec> Table<T> {
    fn version<'s>(&self, source: &'s impl ReadSource) -> Option<&'s Version<T>> {
        self.meta.version(source)
    }

    fn rows<'s>(
        &self,
        source: &'s impl ReadSource,
        f: impl FnOnce(&'s Version<T>) -> Rows<'s, T>,
    ) -> Rows<'s, T> {
        self.version(source).map_or_else(|| Rows::one(None), f)
    }

    /// Returns the first row with the key.
    pub fn get<'s>(&self, source: &'s impl ReadSource, query: impl AsQuery<T>) -> Option<&'s Obj<T>> {
        self.version(source)?.get(&self.meta.indexes, query.as_query())
    }

    /// Returns all rows with the key, those of a non-unique index in order of their primary keys.
    pub fn list<'s>(&self, source: &'s impl ReadSource, query: impl AsQuery<T>) -> Rows<'s, T> {
        self.rows(source, |version| version.list(&self.meta.indexes, query.as_query()))
    }

    /// Returns all rows whose key starts with the prefix, in the index's order.
    pub fn prefix<'s>(&self, source: &'s impl ReadSource, prefix: Prefix<T>) -> Rows<'s, T> {
        self.rows(source, |version| version.prefix(&self.meta.indexes, &prefix))
    }

    /// Returns all rows whose key is equal or greater, in the index's order.
    pub fn lower_bound<'s>(&self, source: &'s impl ReadSource, query: impl AsQuery<T>) -> Rows<'s, T> {
        self.rows(source, |version| version.lower_bound(&self.meta.indexes, query.as_query()))
    }

    /// Returns all rows whose key is in the range, in the index's order.
    pub fn range<'s>(&self, source: &'s impl ReadSource, range: KeyRange<T>) -> Rows<'s, T> {
        self.rows(source, |version| version.range(&self.meta.indexes, &range))
    }

    /// Returns all rows in order of their primary keys.
    pub fn all<'s>(&self, source: &'s impl ReadSource) -> Rows<'s, T> {
        self.rows(source, Version::all)
    }

    /// Returns the rows that were last written at this revision or later, oldest change first.
    pub fn by_revision<'s>(&self, source: &'s impl ReadSource, from: u64) -> Rows<'s, T> {
        self.rows(source, |version| version.by_revision(from))
    }

    /// Returns the number of rows.
    pub fn len(&self, source: &impl ReadSource) -> usize {
        self.version(source).map_or(0, |version| version.primary.len())
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self, source: &impl ReadSource) -> bool {
        self.len(source) == 0
    }

    /// Returns the table's revision: that of its last change.
    pub fn revision(&self, source: &impl ReadSource) -> u64 {
        self.version(source).map_or(0, |version| version.revision)
    }

    /// Returns a watch that closes with the next change of any row after the snapshot.
    pub fn watch(&self, snapshot: &Snapshot) -> Watch {
        self.version(snapshot).map_or_else(Watch::closed, |version| version.watch.watch())
    }

    /// As [`get`](Self::get), with a watch that closes when this row changes or, if there is none, when it is inserted
    /// (in which case changes of rows near it in the index may close it, too).
    pub fn get_watch<'s>(
        &self,
        snapshot: &'s Snapshot,
        query: impl AsQuery<T>,
    ) -> (Option<&'s Obj<T>>, Watch) {
        let Some(version) = self.version(snapshot) else { return (None, Watch::closed()) };
        let found = version.get(&self.meta.indexes, query.as_query());
        let watch = version.key_watch(&self.meta.indexes, query.as_query(), found);
        (found, watch)
    }

    /// As [`list`](Self::list), with a watch that closes when these rows change, or others near them in the index.
    pub fn list_watch<'s>(&self, snapshot: &'s Snapshot, query: impl AsQuery<T>) -> (Rows<'s, T>, Watch) {
        let query = query.as_query();
        let Some(version) = self.version(snapshot) else { return (Rows::one(None), Watch::closed()) };
        let rows = version.list(&self.meta.indexes, query);
        let first = version.get(&self.meta.indexes, query);
        (rows, version.key_watch(&self.meta.indexes, query, first))
    }

    /// As [`prefix`](Self::prefix), with a watch that closes when these rows change, or others near them in the index.
    pub fn prefix_watch<'s>(&self, snapshot: &'s Snapshot, prefix: Prefix<T>) -> (Rows<'s, T>, Watch) {
        let Some(version) = self.version(snapshot) else { return (Rows::one(None), Watch::closed()) };
        let watch = version.prefix_watch(&self.meta.indexes, &prefix);
        (version.prefix(&self.meta.indexes, &prefix), watch)
    }

    /// As [`lower_bound`](Self::lower_bound), with a watch.
    pub fn lower_bound_watch<'s>(
        &self,
        snapshot: &'s Snapshot,
        query: impl AsQuery<T>,
    ) -> (Rows<'s, T>, Watch) {
        (self.lower_bound(snapshot, query), self.watch(snapshot))
    }

    /// As [`range`](Self::range), with a watch that closes when these rows change, or others near them in the index:
    /// those whose keys start with the common prefix of the range.
    pub fn range_watch<'s>(&self, snapshot: &'s Snapshot, range: KeyRange<T>) -> (Rows<'s, T>, Watch) {
        let Some(version) = self.version(snapshot) else { return (Rows::one(None), Watch::closed()) };
        let watch = version.range_watch(&self.meta.indexes, &range);
        (version.range(&self.meta.indexes, &range), watch)
    }

    /// As [`all`](Self::all), with a watch.
    pub fn all_watch<'s>(&self, snapshot: &'s Snapshot) -> (Rows<'s, T>, Watch) {
        (self.all(snapshot), self.watch(snapshot))
    }

    /// Waits until a row with the key exists and `wanted` accepts it; returns the row.
    pub async fn wait_for(&self, query: impl AsQuery<T>, wanted: impl Fn(&T) -> bool) -> Obj<T> {
        loop {
            let watch = {
                let snapshot = self.db.snapshot();
                match self.get(&snapshot, query.as_query()) {
                    Some(object) if wanted(object) => return object.clone(),
                    _ => self.get_watch(&snapshot, query.as_query()).1,
                }
            };
            watch.changed().await;
        }
    }

    /// As [`wait_for`](Self::wait_for), with a timeout. The error lists the sources that have not filled the table yet.
    pub async fn wait_for_within(
        &self,
        timeout: Duration,
        query: impl AsQuery<T>,
        wanted: impl Fn(&T) -> bool,
    ) -> Result<Obj<T>, NotInTime> {
        let found = tokio::time::timeout(timeout, self.wait_for(query.as_query(), wanted)).await;
        found.map_err(|_| {
            let pending = self.pending_initializers(&self.snapshot());
            NotInTime { table: T::NAME, timeout, pending }
        })
    }

    /// Waits until `find` returns a result for a snapshot; returns that result. `find` is called again after each
    /// change of the table.
    pub async fn wait_until<R>(&self, mut find: impl FnMut(&Self, &Snapshot) -> Option<R>) -> R {
        loop {
            let watch = {
                let snapshot = self.db.snapshot();
                match find(self, &snapshot) {
                    Some(found) => return found,
                    None => self.watch(&snapshot),
                }
            };
            watch.changed().await;
        }
    }

    /// Returns a stream of all rows as changes, then of every later change; see [`Changes`].
    #[track_caller]
    pub fn changes(&self) -> Changes<T> {
        Changes::new(self.clone())
    }

    /// Returns whether all sources that registered an initializer have filled the table; true if there were none.
    pub fn initialized(&self, source: &impl ReadSource) -> bool {
        self.version(source).is_some_and(|version| version.init.pending.is_empty())
    }

    /// Returns the names of the sources that have not filled the table yet.
    pub fn pending_initializers(&self, source: &impl ReadSource) -> Vec<Arc<str>> {
        let pending = self.version(source).map_or(&[][..], |version| &version.init.pending);
        pending.iter().map(|pending| pending.name.clone()).collect()
    }

    /// Returns whether the table is initialized, and a watch that closes when a further initializer is done or
    /// registered.
    pub fn initialized_watch(&self, snapshot: &Snapshot) -> (bool, Watch) {
        match self.version(snapshot) {
            Some(version) if !version.init.pending.is_empty() => (false, version.init.watch.watch()),
            Some(_) => (true, Watch::closed()),
            None => (false, Watch::closed()),
        }
    }

    /// Waits until all initializers are done.
    pub async fn wait_initialized(&self) {
        loop {
            let (initialized, watch) = self.initialized_watch(&self.db.snapshot());
            if initialized {
                return;
            }
            watch.changed().await;
        }
    }

    /// Returns the database of this table.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Returns a snapshot of all tables; the same as `db().snapshot()`.
    pub fn snapshot(&self) -> Snapshot {
        self.db.snapshot()
    }

    /// Returns the table's name.
    pub fn name(&self) -> &'static str {
        T::NAME
    }
}

impl<T: TableSpec> RwTable<T> {
    /// Returns the read handle.
    pub fn reader(&self) -> Table<T> {
        self.0.clone()
    }

    /// Begins a transaction on this table. Waits for the current writer. Keep it short; take no other lock meanwhile.
    /// In async code end its block before the next `await`, or use [`transact`](Self::transact).
    ///
    /// # Panics
    /// In debug builds, if this thread has a transaction of this database already: it could dead-lock.
    #[track_caller]
    pub fn write(&self) -> TableTxn<'_, T> {
        self.0.db.write((self,))
    }
}

impl<T: TableSpec> RwTable<T> {
    /// Runs a function in a transaction and commits it; returns the function's result and the committed state.
    ///
    /// For async code, where a transaction in a variable makes the future unable to move between threads even after
    /// its commit, unless a block ends in between.
    /// ```
    /// # use statedb::*;
    /// fn can_be_sent<T: TableSpec>(table: RwTable<T>) -> impl Future<Output = usize> + Send {
    ///     async move {
    ///         let (deleted, _snapshot) = table.transact(|w| w.delete_all());
    ///         std::future::ready(()).await;
    ///         deleted
    ///     }
    /// }
    /// ```
    #[track_caller]
    pub fn transact<R>(&self, f: impl FnOnce(&mut Writer<'_, T>) -> R) -> (R, Snapshot) {
        let mut txn = self.write();
        let result = f(&mut txn);
        (result, txn.commit())
    }
}

impl<T: TableSpec> Deref for RwTable<T> {
    type Target = Table<T>;

    fn deref(&self) -> &Table<T> {
        &self.0
    }
}

impl<T: TableSpec> Clone for Table<T> {
    fn clone(&self) -> Self {
        Table { db: self.db.clone(), meta: self.meta.clone() }
    }
}

impl<T: TableSpec> Clone for RwTable<T> {
    fn clone(&self) -> Self {
        RwTable(self.0.clone())
    }
}

impl<T: TableSpec> std::fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table({})", T::NAME)
    }
}

impl<T: TableSpec> std::fmt::Debug for RwTable<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RwTable({})", T::NAME)
    }
}
