//! A table as a stream, for jobs that follow it.

use futures::Stream;
use futures::stream::unfold;

use crate::changes::Changes;
use crate::db::Snapshot;
use crate::spec::TableSpec;
use crate::table::Table;

impl<T: TableSpec> Table<T> {
    /// What happens to the rows, as a stream for [`JobGroup::observer`](hive::JobGroup::observer).
    ///
    /// First all rows there are, then every change after them, as of [`Changes`]: in order of revision,
    /// none is lost, none comes twice, several of one row between two batches are one. While a batch is being worked on
    /// what happens gathers in the next. The stream never ends; while it lives the table keeps deleted rows until it has
    /// given them, from the moment of this call on.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use hive::prelude::*;
    /// use serde::Serialize;
    /// use statedb::{Batch, RwTable, Table, TableSpec};
    ///
    /// # #[derive(Clone, Debug, Serialize)]
    /// # struct Device { index: u32, name: String }
    /// # impl TableSpec for Device {
    /// #     const NAME: &'static str = "devices";
    /// #     type Key<'a> = u32;
    /// #     fn key(&self) -> u32 { self.index }
    /// #     fn columns() -> &'static [&'static str] { &["Index", "Name"] }
    /// #     fn row(&self) -> Vec<String> { vec![self.index.to_string(), self.name.clone()] }
    /// # }
    /// fn follow(jobs: JobGroup, devices: Arc<Table<Device>>) {
    ///     jobs.observer("devices", devices.observe(), |cx: JobCx, batch: Batch<Device>| async move {
    ///         for change in &batch {
    ///             tracing::info!(name = change.object.name, gone = change.deleted, "Device");
    ///         }
    ///         Ok(()) // an error degrades the job's health, and the next batch is taken
    ///     });
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let cells = [statedb::cell(), module("devices", "Devices", [statedb::table::<Device>(), invoke(follow)])];
    /// let mut hive = TestHive::new(cells);
    /// hive.start().await;
    /// let devices = hive.get::<RwTable<Device>>();
    /// devices.transact(|w| drop(w.insert(Device { index: 1, name: "eth0".into() })));
    /// hive.until("the device is told", || hive.has_logged(hive::LogLevel::INFO, "Device name=eth0 gone=false")).await;
    /// # drop(devices);
    /// hive.finish().await;
    /// # }
    /// ```
    #[track_caller]
    pub fn observe(&self) -> Changes<T> {
        self.changes()
    }

    /// The database as it is at first, then after each change of this table; for those who look at the whole table each
    /// time. Changes that come close upon each other, or while a snapshot is being worked on, are one. Never ends.
    pub fn snapshots(&self) -> impl Stream<Item = Snapshot> + Send + use<T> {
        unfold((self.clone(), None), |(table, watch): (Table<T>, Option<crate::Watch>)| async {
            if let Some(watch) = watch {
                watch.changed().await;
            }
            let snapshot = table.snapshot();
            let watch = table.watch(&snapshot);
            Some((snapshot, (table, Some(watch))))
        })
    }
}
