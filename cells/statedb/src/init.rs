//! Initializers: the sources that have to fill a table before it counts as complete.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::spec::TableSpec;
use crate::watch::WatchCell;

/// The pending initializers of a table. A table without any is initialized.
#[derive(Default)]
pub(crate) struct InitState {
    pub(crate) pending: Vec<Pending>,
    /// Closes when an initializer is registered or done.
    pub(crate) watch: WatchCell,
}

impl InitState {
    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        self.pending.iter().map(|pending| pending.name.clone()).collect()
    }
}

#[derive(Clone)]
pub(crate) struct Pending {
    pub(crate) name: Arc<str>,
    /// Distinguishes a registration from an earlier one of the same name.
    pub(crate) id: u64,
}

/// A source's promise to fill the table: the table is initialized once all sources are done.
///
/// Pruning of kernel state waits for that, so that a restart does not remove entries that a slow source is about to
/// list.
#[must_use = "a table stays uninitialized until `done` is called"]
pub struct Initializer<T> {
    pub(crate) table: &'static str,
    pub(crate) name: Arc<str>,
    pub(crate) id: u64,
    pub(crate) finished: bool,
    pub(crate) marker: PhantomData<fn(&T)>,
}

impl<T: TableSpec> Initializer<T> {
    /// Marks the source as complete with the commit of this transaction.
    pub fn done(mut self, txn: &mut crate::writer::Writer<'_, T>) {
        self.finished = true;
        txn.finish_initializer(self.id);
    }

    /// Drops the initializer at shutdown: the table stays uninitialized, and nothing is logged.
    pub fn abandon(mut self) {
        self.finished = true;
    }

    /// Returns the source's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<T> Drop for Initializer<T> {
    fn drop(&mut self) {
        if !self.finished {
            // Not a warning: a failed start drops all initializers, and the shell's `db` lists the pending ones.
            #[cfg(feature = "tracing")]
            tracing::debug!(
                table = self.table,
                initializer = %self.name,
                "A source of a table was dropped before it was complete: the table will never be"
            );
        }
    }
}
