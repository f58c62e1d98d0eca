//! The database: a root that points at one version of each table.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::any::AnyTable;
use crate::error::Error;
use crate::spec::TableSpec;
use crate::table::{RwTable, Table, TableMeta};
use crate::txn::{Txn, WriteSet};
use crate::version::{AnyVersion, Version};

/// A set of tables that are read together and written one transaction at a time each. Cheap to clone.
#[derive(Clone)]
pub struct Db(pub(crate) Arc<DbInner>);

pub(crate) struct DbInner {
    /// Tells databases of one process apart.
    pub(crate) id: u64,
    root: RwLock<Arc<Root>>,
    tables: Mutex<Vec<Arc<dyn AnyTable>>>,
}

/// Versions by table position, which is the order of registration.
pub(crate) type Root = Vec<Arc<dyn AnyVersion>>;

impl Db {
    /// An empty database.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Db(Arc::new(DbInner {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            root: RwLock::default(),
            tables: Mutex::default(),
        }))
    }

    /// Registers the table of `T`; possible at any time.
    pub fn table<T: TableSpec>(&self) -> Result<RwTable<T>, Error> {
        let mut tables = self.0.tables.lock();
        let known: Vec<_> = tables.iter().map(|table| table.name()).collect();
        let meta = Arc::new(TableMeta::<T>::new(self.0.id, tables.len(), &known)?);
        let version: Arc<dyn AnyVersion> = Arc::new(Version::<T>::empty(meta.indexes.len()));
        self.0.swap(|root| root.push(version));
        tables.push(meta.clone());
        drop(tables);
        Ok(RwTable(Table { db: self.clone(), meta }))
    }

    /// All tables as they are now. Takes no lock that a writer holds for long, costs two counters.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { db: self.0.id, root: self.0.root.read().clone() }
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

impl DbInner {
    /// Publishes a changed root: from here on new snapshots see it.
    pub(crate) fn swap(&self, change: impl FnOnce(&mut Root)) -> Snapshot {
        let mut guard = self.root.write();
        let mut root = Root::clone(&guard);
        change(&mut root);
        let root = Arc::new(root);
        let old = std::mem::replace(&mut *guard, root.clone());
        drop(guard);
        drop(old);
        Snapshot { db: self.id, root }
    }
}

/// All tables at one moment: immutable, shared, sendable, kept alive as long as it is held.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) db: u64,
    root: Arc<Root>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot({} tables)", self.root.len())
    }
}

/// What tables can be read from: a [`Snapshot`], or a transaction, which sees its own uncommitted writes.
pub trait ReadSource {
    #[doc(hidden)]
    fn database(&self) -> u64;

    /// The version at a table position, none if the table was registered later.
    #[doc(hidden)]
    fn any_version(&self, position: usize) -> Option<&dyn Any>;
}

impl ReadSource for Snapshot {
    fn database(&self) -> u64 {
        self.db
    }

    fn any_version(&self, position: usize) -> Option<&dyn Any> {
        Some(self.root.get(position)?.as_any())
    }
}
