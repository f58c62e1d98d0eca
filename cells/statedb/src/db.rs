//! The database: a root that points at one version of each table.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::any::AnyTable;
use crate::engine::Held;
use crate::error::Error;
use crate::metrics::{Handle, Handles, Listener, Metrics, UNNAMED};
use crate::reader::Reader;
use crate::root::{AnyVersionRef, States, Versions};
use crate::spec::TableSpec;
use crate::table::{RwTable, Table, TableMeta};
use crate::txn::{Txn, WriteSet};
use crate::version::Version;

/// A set of tables that are read together and written one transaction at a time each. Cheap to clone; a clone has the
/// name that [`handle`](Db::handle) gave it.
#[derive(Clone)]
pub struct Db(pub(crate) Arc<DbInner>, pub(crate) Handle);

pub(crate) struct DbInner {
    /// Distinguishes databases of one process.
    pub(crate) id: u64,
    pub(crate) states: States,
    pub(crate) handles: Arc<Handles>,
    pub(crate) listener: Listener,
    tables: Mutex<Vec<Arc<dyn AnyTable>>>,
    attached: Mutex<Vec<Weak<dyn Any + Send + Sync>>>,
}

impl Db {
    /// An empty database.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let states = States::new(Versions::new(id));
        let (handles, listener, tables) = (Arc::default(), Listener::default(), Mutex::default());
        let attached = Mutex::default();
        Db(Arc::new(DbInner { id, states, handles, listener, tables, attached }), UNNAMED)
    }

    /// The same database under the name of one who writes: its transactions, and those on tables that it registers, are
    /// told by this name in overviews and metrics. In a hive that is the module's, see [`table()`](crate::table()).
    pub fn handle(&self, name: &str) -> Db {
        Db(self.0.clone(), self.0.handles.number(name))
    }

    /// Has transactions measured, for as long as `metrics` listens. The first one stays; false if there is one.
    pub fn measure(&self, metrics: Arc<dyn Metrics>) -> bool {
        self.0.listener.set(metrics)
    }

    /// Registers the table of `T`; possible at any time.
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

    /// All tables as they are now. Takes no lock, costs two counters.
    #[inline]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.0.states.current())
    }

    /// A reader of its own for a loop that often looks whether something has changed.
    pub fn reader(&self) -> Reader {
        Reader::new(self.clone())
    }

    /// A transaction on several tables: `db.write((&devices, &routes))`. Waits for the other writers of these.
    ///
    /// # Panics
    /// If a table is named twice or belongs to another database; in debug builds also if this thread has a
    /// transaction of this database already, which could dead-lock.
    #[track_caller]
    pub fn write<'a, S: WriteSet<'a>>(&self, tables: S) -> Txn<'a, S::Writers> {
        Txn::begin(self, tables)
    }

    /// The registered tables without their types, in order of registration, for the shell and HTTP.
    pub fn tables(&self) -> Vec<Arc<dyn AnyTable>> {
        self.0.tables.lock().clone()
    }

    /// Notes something that works on the tables, such as a reconciler, for those who show what there is. It is not kept
    /// alive.
    pub fn attach<A: Any + Send + Sync>(&self, what: &Arc<A>) {
        let mut attached = self.0.attached.lock();
        attached.retain(|other| other.strong_count() > 0);
        let what: Weak<A> = Arc::downgrade(what);
        attached.push(what);
    }

    /// All of a type that was [attached](Db::attach) and is still there, in that order.
    pub fn attached<A: Any + Send + Sync>(&self) -> Vec<Arc<A>> {
        let attached = self.0.attached.lock();
        attached.iter().filter_map(|what| what.upgrade()?.downcast().ok()).collect()
    }

    /// The table of a name.
    pub fn table_by_name(&self, name: &str) -> Result<Arc<dyn AnyTable>, Error> {
        let tables = self.0.tables.lock();
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

/// All tables at one moment: immutable, shared, sendable, kept alive as long as it is held.
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

    /// Grows with each published state of the database.
    pub(crate) fn number(&self) -> u64 {
        self.0.number()
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot({} tables)", self.versions().len())
    }
}

/// What tables can be read from: a [`Snapshot`], or a transaction, which sees its own uncommitted writes.
pub trait ReadSource {
    #[doc(hidden)]
    fn database(&self) -> u64;

    /// The version at a table position, none if the table was registered later.
    #[doc(hidden)]
    fn any_version(&self, position: usize) -> Option<AnyVersionRef<'_>>;
}

impl ReadSource for Snapshot {
    #[inline]
    fn database(&self) -> u64 {
        self.versions().db()
    }

    #[inline]
    fn any_version(&self, position: usize) -> Option<AnyVersionRef<'_>> {
        self.versions().get(position)
    }
}
