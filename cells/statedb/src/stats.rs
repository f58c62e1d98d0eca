//! The statistics of tables, for metrics and tools.

use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::changes::ReaderStats;
use crate::db::Snapshot;
use crate::locks::LongWrite;
use crate::spec::TableSpec;
use crate::table::{Table, TableMeta};

/// The statistics of a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TableStats {
    /// The table's name.
    pub table: &'static str,
    /// The number of rows.
    pub objects: usize,
    /// The number of deleted rows kept for readers of changes.
    pub zombies: usize,
    /// The revision of the last change.
    pub revision: u64,
    /// The number of readers of changes.
    pub trackers: usize,
    /// The readers of changes, those for which most deleted rows are kept first.
    pub readers: Vec<ReaderStats>,
    /// The sources that have not filled the table yet.
    pub pending_initializers: Vec<Arc<str>>,
    /// The name of the row type.
    pub type_name: &'static str,
    /// The last commit that wrote the table.
    pub last_write: Option<LastWrite>,
    /// Write transactions that held an executor's thread too long, by source location, the longest first.
    pub long_writes: Vec<LongWrite>,
}

/// The last write of a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LastWrite {
    /// The writer: the name of the database's [`handle`](crate::Db::handle).
    pub handle: Arc<str>,
    /// The time of the commit.
    pub at: Instant,
    /// The time for which the transaction held the table.
    pub held: Duration,
    /// The source location at which the transaction began.
    pub place: &'static Location<'static>,
}

/// A table without its row type, as the database lists it.
pub(crate) trait Registered: Send + Sync {
    fn name(&self) -> &'static str;

    fn stats(&self, snapshot: &Snapshot) -> TableStats;
}

impl<T: TableSpec> Registered for TableMeta<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn stats(&self, snapshot: &Snapshot) -> TableStats {
        TableMeta::stats(self, snapshot)
    }
}

impl<T: TableSpec> TableMeta<T> {
    pub(crate) fn stats(&self, snapshot: &Snapshot) -> TableStats {
        let version = self.version(snapshot);
        // Copied, so that a walk over many deleted rows does not hold up commits, which take the lock as well.
        let trackers = self.trackers.lock().all().to_vec();
        let readers = Table::readers(&trackers, version);
        TableStats {
            table: T::NAME,
            objects: version.map_or(0, |version| version.primary.len()),
            zombies: version.map_or(0, |version| version.graveyard.len()),
            revision: version.map_or(0, |version| version.revision),
            pending_initializers: version.map(|version| version.init.names()).unwrap_or_default(),
            trackers: readers.len(),
            readers,
            type_name: std::any::type_name::<T>(),
            long_writes: self.long_writes.all(),
            last_write: (*self.last_write.lock()).map(|write| LastWrite {
                handle: self.handles.name(write.handle),
                at: write.at,
                held: write.held,
                place: write.place,
            }),
        }
    }
}

impl<T: TableSpec> Table<T> {
    /// Returns the table's statistics.
    pub fn stats(&self, snapshot: &Snapshot) -> TableStats {
        self.meta.stats(snapshot)
    }
}
