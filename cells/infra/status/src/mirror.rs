//! The rows of the table `health`, in the order of the reports.

use hive::HealthChange;
use parking_lot::Mutex;
use statedb::RwTable;
use tokio::sync::Notify;

use crate::report::Report;

/// Writes reports as rows. A report inside of a transaction of the database cannot write a row, so it waits for the next
/// report or for [`follow`](Mirror::follow).
pub(crate) struct Mirror {
    table: RwTable<Report>,
    waiting: Mutex<Vec<Change>>,
    deferred: Notify,
}

enum Change {
    Report(Report),
    Closed(String),
}

impl Mirror {
    pub(crate) fn new(table: RwTable<Report>) -> Mirror {
        Mirror { table, waiting: Mutex::default(), deferred: Notify::new() }
    }

    /// Records a change; called under the lock of the tree, which keeps the order.
    pub(crate) fn change(&self, change: HealthChange<'_>) {
        self.waiting.lock().push(match change {
            HealthChange::Report(status) => Change::Report(Report::from(status)),
            HealthChange::Closed(status) => Change::Closed(status.path()),
        });
        match self.table.db().in_transaction() {
            true => self.deferred.notify_one(),
            false => self.write(),
        }
    }

    /// Writes the rows of deferred changes, for ever.
    pub(crate) async fn follow(&self) {
        loop {
            self.deferred.notified().await;
            self.write();
        }
    }

    fn write(&self) {
        self.table.transact(|w| {
            // Inside of the transaction: of two writers the second has the later changes.
            for change in self.waiting.lock().drain(..) {
                match change {
                    Change::Report(report) => drop(w.insert(report)),
                    Change::Closed(path) => drop(w.delete(Report::by_identifier(&path))),
                }
            }
        });
    }
}
