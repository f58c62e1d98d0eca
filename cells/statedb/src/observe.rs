//! Streams of a table's changes and snapshots, for jobs.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use crate::changes::Changes;
use crate::db::Snapshot;
use crate::spec::TableSpec;
use crate::table::Table;
use crate::watch::Changed;

impl<T: TableSpec> Table<T> {
    /// Returns the changes of the rows as a stream, for a job such as an observer of `hive`.
    ///
    /// First all existing rows, then every later change, as [`Changes`] describes: in order of revision, each exactly
    /// once, several of one row between two batches coalesced. Changes that occur while a batch is processed are in
    /// the next one. The stream never ends; from this call until it is dropped, the table keeps deleted rows that it
    /// has not returned yet.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use hive::prelude::*;
    /// use serde::Serialize;
    /// use statedb::{Batch, RwTable, Table, TableDisplay, TableSpec};
    ///
    /// # #[derive(Clone, Debug, Serialize)]
    /// # struct Device { index: u32, name: String }
    /// # impl TableSpec for Device {
    /// #     const NAME: &'static str = "devices";
    /// #     type Key<'a> = u32;
    /// #     fn key(&self) -> u32 { self.index }
    /// # }
    /// # impl TableDisplay for Device {
    /// #     fn columns() -> &'static [&'static str] { &["Index", "Name"] }
    /// #     fn row(&self) -> Vec<String> { vec![self.index.to_string(), self.name.clone()] }
    /// # }
    /// fn follow(jobs: JobGroup, devices: Arc<Table<Device>>) {
    ///     jobs.observer("devices", devices.observe(), |cx: JobCx, batch: Batch<Device>| async move {
    ///         for change in &batch {
    ///             tracing::info!(name = change.object.name, gone = change.deleted, "Device");
    ///         }
    ///         Ok(()) // an error degrades the job's health, and the next batch is taken
    ///     }).add();
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let cells = [statedb::cell(), module("devices", "Devices", [statedb::table::<Device>(), invoke(follow)])];
    /// let mut hive = TestHive::new(cells);
    /// hive.start().await;
    /// let devices = hive.get::<RwTable<Device>>();
    /// devices.transact(|w| drop(w.insert(Device { index: 1, name: "eth0".into() })));
    /// hive.until("device logged", || hive.has_logged(hive::LogLevel::INFO, "Device name=eth0 gone=false")).await;
    /// # drop(devices);
    /// hive.finish().await;
    /// # }
    /// ```
    #[track_caller]
    pub fn observe(&self) -> Changes<T> {
        self.changes()
    }

    /// Returns a stream of the current snapshot, then of one after each change of this table: for jobs that process the
    /// whole table each time. Changes in quick succession, or while a snapshot is processed, are coalesced. Never ends.
    pub fn snapshots(&self) -> impl Stream<Item = Snapshot> + Send + use<T> {
        Snapshots { table: self.clone(), waiting: None }
    }
}

/// The stream of [`Table::snapshots`].
struct Snapshots<T: TableSpec> {
    table: Table<T>,
    /// Pending until the table changes; none before the first snapshot.
    waiting: Option<Changed>,
}

impl<T: TableSpec> Stream for Snapshots<T> {
    type Item = Snapshot;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Snapshot>> {
        let snapshots = self.get_mut();
        if let Some(waiting) = &mut snapshots.waiting {
            ready!(waiting.as_mut().poll(cx));
        }
        let snapshot = snapshots.table.snapshot();
        snapshots.waiting = Some(snapshots.table.watch(&snapshot).into_changed());
        Poll::Ready(Some(snapshot))
    }
}
