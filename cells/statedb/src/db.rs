//! The database: a published root that holds one version of each table.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

#[cfg(feature = "untyped")]
use crate::any::{AnyTable, TableDisplay};
use crate::engine::Held;
use crate::error::Error;
use crate::metrics::{Handle, Handles, Listener, Metrics, UNNAMED};
use crate::reader::Reader;
use crate::root::{AnyVersionRef, States, Versions};
use crate::spec::TableSpec;
use crate::stats::{Registered, TableStats};
use crate::table::{RwTable, Table, TableMeta};
use crate::txn::{Txn, WriteSet};
use crate::version::Version;

/// A set of tables that are read together; each is written by one transaction at a time. Cheap to clone; a clone keeps
/// the handle name set by [`handle`](Db::handle).
#[derive(Clone)]
pub struct Db(pub(crate) Arc<DbInner>, pub(crate) Handle);

pub(crate) struct DbInner {
    /// Distinguishes databases of one process.
    pub(crate) id: u64,
    pub(crate) states: States,
    pub(crate) handles: Arc<Handles>,
    pub(crate) listener: Listener,
    tables: Mutex<Vec<Arc<dyn Registered>>>,
    #[cfg(feature = "untyped")]
    displayed: Mutex<Vec<Arc<dyn AnyTable>>>,
    attached: Mutex<Vec<Weak<dyn Any + Send + Sync>>>,
}

impl Db {
    /// Creates an empty database.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let states = States::new(Versions::new(id));
        let inner = DbInner {
            id,
            states,
            handles: Arc::default(),
            listener: Listener::default(),
            tables: Mutex::default(),
            #[cfg(feature = "untyped")]
            displayed: Mutex::default(),
            attached: Mutex::default(),
        };
        Db(Arc::new(inner), UNNAMED)
    }

    /// Returns a handle with a name: its transactions, and those on tables that it registers, appear under this name in
    /// statistics and metrics. In a hive it is the module's name.
    pub fn handle(&self, name: &str) -> Db {
        Db(self.0.clone(), self.0.handles.number(name))
    }

    /// Sets the receiver of measurements; transactions are measured while it listens. It can be set once: returns false
    /// if one is set already.
    pub fn measure(&self, metrics: Arc<dyn Metrics>) -> bool {
        self.0.listener.set(metrics)
    }

    /// Registers the table of `T`; possible at any time. Snapshots that are older do not contain it.
    pub fn table<T: TableSpec>(&self) -> Result<RwTable<T>, Error> {
        let mut tables = self.0.tables.lock();
        let known: Vec<_> = tables.iter().map(|table| table.name()).collect();
        let meta = Arc::new(TableMeta::<T>::new(self.0.id, &self.0.handles, tables.len(), &known)?);
        let version = Box::new(Version::<T>::empty(meta.indexes.len()));
        drop(self.0.states.publish(|versions| versions.push(version)));
        tables.push(meta.clone());
        drop(tables);
        Ok(RwTable(Table { db: self.clone(), meta }))
    }

    /// As [`table`](Db::table), and lists the table among [`tables`](Db::tables), for tools that do not know its row
    /// type.
    #[cfg(feature = "untyped")]
    pub fn table_with_display<T: TableDisplay>(&self) -> Result<RwTable<T>, Error> {
        let mut displayed = self.0.displayed.lock();
        let table = self.table()?;
        displayed.push(table.meta.clone());
        Ok(table)
    }

    /// Returns a snapshot of all tables. Takes no lock; costs two atomic operations on a counter.
    #[inline]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.0.states.current())
    }

    /// Returns the numbers of the previous versions that snapshots keep in memory, the oldest first. Between transactions a
    /// program whose jobs keep none has none.
    pub fn previous_versions(&self) -> Vec<u64> {
        self.0.states.previous()
    }

    /// Returns a [`Reader`] for a loop that often checks for changes.
    pub fn reader(&self) -> Reader {
        Reader::new(self.clone())
    }

    /// Whether the current thread has a write transaction of this database: it must not begin another one.
    pub fn in_transaction(&self) -> bool {
        crate::locks::holds(self.0.id)
    }

    /// Begins a transaction on several tables: `db.write((&devices, &routes))`. Waits for their current writers.
    ///
    /// # Panics
    /// If a table is named twice or belongs to another database; in debug builds also if this thread has a
    /// transaction of this database already, which could dead-lock.
    #[track_caller]
    pub fn write<'a, S: WriteSet<'a>>(&self, tables: S) -> Txn<'a, S::Writers> {
        Txn::begin(self, tables)
    }

    /// Returns the statistics of all tables, in order of registration.
    pub fn stats(&self, snapshot: &Snapshot) -> Vec<TableStats> {
        let tables = self.0.tables.lock().clone();
        tables.iter().map(|table| table.stats(snapshot)).collect()
    }

    /// Returns the tables [with a display](Db::table_with_display) without their types, in order of registration, for
    /// shells and HTTP.
    #[cfg(feature = "untyped")]
    pub fn tables(&self) -> Vec<Arc<dyn AnyTable>> {
        self.0.displayed.lock().clone()
    }

    /// Registers an object that works on the tables, such as a reconciler, for tools that list such objects. Only a
    /// weak reference is kept.
    pub fn attach<A: Any + Send + Sync>(&self, object: &Arc<A>) {
        let mut attached = self.0.attached.lock();
        attached.retain(|other| other.strong_count() > 0);
        let object: Weak<A> = Arc::downgrade(object);
        attached.push(object);
    }

    /// Returns the live [attached](Db::attach) objects of a type, in order of attachment.
    pub fn attached<A: Any + Send + Sync>(&self) -> Vec<Arc<A>> {
        let attached = self.0.attached.lock();
        attached.iter().filter_map(|object| object.upgrade()?.downcast().ok()).collect()
    }

    /// Returns the table with a name, if it [has a display](Db::table_with_display).
    #[cfg(feature = "untyped")]
    pub fn table_by_name(&self, name: &str) -> Result<Arc<dyn AnyTable>, Error> {
        let tables = self.0.displayed.lock();
        let found = tables.iter().find(|table| table.name() == name);
        found.cloned().ok_or_else(|| Error::UnknownTable { name: name.to_owned() })
    }
}

impl Default for Db {
    fn default() -> Self {
        Db::new()
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Db({} tables)", self.0.tables.lock().len())
    }
}

/// A consistent, immutable view of all tables. Cheap to clone; keeps the rows that it reaches allocated.
#[derive(Clone)]
pub struct Snapshot(Held<Versions>);

impl Snapshot {
    pub(crate) fn of(held: Held<Versions>) -> Self {
        Snapshot(held)
    }

    #[inline(always)]
    pub(crate) fn is_current(&self) -> bool {
        self.0.is_current()
    }

    #[inline]
    pub(crate) fn versions(&self) -> &Versions {
        self.0.root()
    }

    /// Returns the number of the published root, which grows with each commit.
    pub(crate) fn number(&self) -> u64 {
        self.0.number()
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot({} tables)", self.versions().len())
    }
}

mod sealed {
    use crate::root::AnyVersionRef;

    pub trait Versioned {
        fn database(&self) -> u64;

        /// Returns the version at a table position, none if the table was registered later.
        fn any_version(&self, position: usize) -> Option<AnyVersionRef<'_>>;
    }
}
pub(crate) use sealed::Versioned;

/// A source of table reads: a [`Snapshot`], or a transaction, which sees its own uncommitted writes.
pub trait ReadSource: Versioned {}

impl ReadSource for Snapshot {}

impl Versioned for Snapshot {
    #[inline]
    fn database(&self) -> u64 {
        self.versions().db()
    }

    #[inline]
    fn any_version(&self, position: usize) -> Option<AnyVersionRef<'_>> {
        self.versions().get(position)
    }
}
