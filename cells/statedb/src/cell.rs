//! Wiring: the database of the hive, and the tables of its modules.

use std::sync::Arc;

use hive::prelude::*;

use crate::any::TableDisplay;
use crate::db::Db;
use crate::error::Error;
use crate::table::{RwTable, Table};

/// Provides the `Arc<Db>` that all tables of a hive are in.
pub fn cell() -> Cell {
    module("statedb", "In-memory tables", [provide(|| Arc::new(Db::new()))])
}

/// Provides the table of `T`, in the list of cells of the module that owns it: `Arc<RwTable<T>>` to the module,
/// `Arc<Table<T>>` to all cells. The table is registered when either is first requested. The module's writes appear
/// under its name in statistics and metrics.
///
/// ```
/// # use std::sync::Arc;
/// # use hive::prelude::*;
/// # use statedb::{RwTable, Table};
/// # #[derive(serde::Serialize, Table)]
/// # #[table(name = "devices")]
/// # struct Device { #[primary] index: u32 }
/// fn devices() -> Cell {
///     module("devices", "Links as a table", [
///         statedb::table::<Device>(),
///         invoke(|table: Arc<RwTable<Device>>| drop(table.transact(|w| w.insert(Device { index: 1 })))),
///     ])
/// }
/// let reader = module("reader", "Counts devices", [invoke(|table: Arc<Table<Device>>| {
///     assert_eq!(table.len(&table.snapshot()), 1);
/// })]);
/// let hive = TestHive::new([statedb::cell(), devices(), reader]);
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let mut hive = hive; hive.start().await; hive.stop().await; });
/// ```
pub fn table<T: TableDisplay>() -> Cell {
    bundle([
        provide_private(|db: Arc<Db>, module: ModuleId| -> Result<Arc<RwTable<T>>, Error> {
            db.handle(module.name()).table_with_display().map(Arc::new)
        }),
        provide(|table: Arc<RwTable<T>>| -> Arc<Table<T>> { Arc::new(table.reader()) }),
    ])
}
