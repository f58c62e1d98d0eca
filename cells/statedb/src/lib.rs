//! In-memory multi-version tables with typed indexes, snapshots and watches.
//!
//! **Owns** state that others read: the part of a program that owns it keeps it in a table.
//! **Provides** a [`Db`] of tables. The owner of a table writes it through its private [`RwTable`]; readers take
//! [`Snapshot`]s and read them through [`Table`](struct@Table), without locks, and wait for changes by a [`Watch`] or
//! [`Changes`].
//! **Needs** nothing.
//!
//! `README.md` begins with a tutorial of fifteen minutes, which ends with a program with a table, a target that follows
//! it, and a test; it continues with the implementation of tables. In short:
//!
//! ```
//! use serde::Serialize;
//! use statedb::{Db, RwTable, Table};
//!
//! #[derive(Clone, Debug, Serialize, Table)]
//! #[table(name = "devices")]
//! pub struct Device {
//!     #[primary]
//!     pub index: u32,
//!     #[index]
//!     pub name: String,
//!     #[column("MTU")]
//!     pub mtu: u32,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), statedb::Error> {
//! let db = Db::new();
//! let devices: RwTable<Device> = db.table()?; // stays with the owner
//! let table: Table<Device> = devices.reader(); // for readers
//!
//! let mut w = devices.write(); // waits for the current writer; dropped without commit, it is aborted
//! w.insert(Device { index: 1, name: "eth0".into(), mtu: 1500 });
//! w.insert(Device { index: 2, name: "lxc1".into(), mtu: 1500 });
//! w.commit();
//!
//! let snapshot = db.snapshot(); // all tables at one moment: owned, Send + Sync + Clone
//! let eth0 = table.get(&snapshot, Device::by_name("eth0")).unwrap(); // &Obj<Device>, clone it to keep it
//! assert_eq!((eth0.mtu, eth0.revision()), (1500, 1));
//! assert_eq!(table.prefix(&snapshot, Device::by_name_prefix("lxc")).count(), 1);
//!
//! let (all, watch) = table.all_watch(&snapshot);
//! assert_eq!(all.count(), 2);
//! let mut w = devices.write();
//! w.update(Device::by_index(1), |device| device.mtu = 9000);
//! w.delete(Device::by_index(2));
//! w.commit();
//! watch.changed().await; // a new snapshot has the change; the old one stays as it was
//! assert_eq!(table.len(&snapshot), 2);
//! assert_eq!(table.len(&db.snapshot()), 1);
//!
//! let mut changes = table.changes(); // first all rows, then updates and deletes
//! for change in changes.next().await {
//!     println!("{} {} {}", change.object.name, change.revision, change.deleted);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! In a hive, `statedb::cell()` provides the `Arc<Db>`, and `statedb::table::<Device>()` inside a module provides an
//! `Arc<RwTable<Device>>` to the module and an `Arc<Table<Device>>` to all cells. Jobs follow a table by
//! [`Table::observe`] or [`Table::snapshots`].
//!
//! **Rules.** Transactions on one table wait for each other: keep them short, lock nothing else meanwhile, write
//! several tables by one `db.write((&a, &b))`. Stored objects are immutable: insert a new object. A table is complete
//! when its initializers are done ([`Writer::register_initializer`]); pruning waits for that.
//!
//! **Order.** A commit first becomes visible, then closes watches, then watches of initialization: a woken task always
//! finds the change. Spurious closes are possible, missed changes are not.

#![warn(missing_debug_implementations)]

#[cfg(feature = "untyped")]
pub mod age;
#[cfg(feature = "untyped")]
mod any;
#[cfg(feature = "hive")]
mod cell;
mod changes;
mod db;
mod debug;
#[cfg(all(feature = "hive", feature = "unstable"))]
mod derived;
mod engine;
mod error;
mod init;
mod key;
mod locks;
mod lpm;
mod metrics;
mod obj;
mod observe;
mod panics;
#[cfg(feature = "unstable")]
mod persistent;
mod query;
mod reader;
#[cfg(feature = "hive")]
mod reflect;
mod root;
mod rows;
mod spec;
mod stats;
mod table;
mod txn;
mod version;
mod watch;
mod watch_set;
mod work;
mod writer;

#[cfg(feature = "untyped")]
pub use any::{
    AnyChange, AnyChanges, AnyObj, AnyRow, AnyTable, Edit, EditError, Find, FromValue, TableDisplay,
};
#[cfg(feature = "hive")]
pub use cell::{cell, table};
pub use changes::{Batch, Change, Changes, ReaderStats};
pub use db::{Db, ReadSource, Snapshot};
#[cfg(all(feature = "hive", feature = "unstable"))]
pub use derived::{Derive, Derived};
#[cfg(feature = "unstable")]
pub use error::CasError;
pub use error::{Conflict, Error, NotInTime, SinceError};
pub use init::Initializer;
pub use key::{IndexKey, KeyBuf, KeyParseError, PrefixOf};
pub use locks::LongWrite;
#[cfg(feature = "unstable")]
pub use lpm::BitPrefix;
pub use lpm::{Lpm, LpmIndex, PrefixKey};
pub use metrics::Metrics;
pub use obj::Obj;
#[cfg(feature = "unstable")]
pub use persistent::{Map, MapIter, Set};
pub use query::{AsQuery, KeyRange, Prefix, Query};
pub use reader::Reader;
#[cfg(feature = "hive")]
pub use reflect::{Applied, Event, Reflector};
pub use rows::Rows;
pub use spec::{Index, IndexDef, Keys, PRIMARY, TableSpec};
pub use stats::{LastWrite, TableStats};
pub use table::{RwTable, Table};
pub use txn::{TableTxn, Txn, WriteSet, Writers};
pub use watch::Watch;
pub use watch_set::WatchSet;
pub use writer::Writer;

#[cfg(feature = "derive")]
pub use statedb_derive::Table;

/// What the code of `derive(Table)` uses.
#[doc(hidden)]
pub mod __private {
    /// Keeps the implementation of `TableDisplay`.
    #[cfg(feature = "untyped")]
    #[macro_export]
    #[doc(hidden)]
    macro_rules! __display {
        ($($implementation:tt)*) => { $($implementation)* };
    }

    /// Drops the implementation of `TableDisplay`, which does not exist.
    #[cfg(not(feature = "untyped"))]
    #[macro_export]
    #[doc(hidden)]
    macro_rules! __display {
        ($($implementation:tt)*) => {};
    }

    #[cfg(feature = "untyped")]
    pub use crate::any::columns::{column, from_value, joined, shown};
}
