//! Initializers: who still has to fill a table before its contents can be trusted to be complete.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::spec::TableSpec;
use crate::watch::WatchCell;

/// The names that are pending. A table without any is initialized.
#[derive(Default)]
pub(crate) struct InitState {
    pub(crate) pending: Vec<Pending>,
    /// Closes when the last one is done.
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
    /// Tells a name that is registered again from its earlier registration.
    pub(crate) id: u64,
}

/// A source's promise to fill the table once: the table counts as initialized when all are done.
///
/// Pruning of kernel state waits for it, so that a restart does not remove what a slow source is about to want.
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

    /// Gives up, since the program ends: the table stays uninitialized, and nothing is said.
    pub fn abandon(mut self) {
        self.finished = true;
    }

    /// The source's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<T> Drop for Initializer<T> {
    fn drop(&mut self) {
        if !self.finished {
            // Not a warning: a start that fails drops all of them, and `db` shows who is missing.
            tracing::debug!(
                table = self.table,
                initializer = %self.name,
                "A source of a table was dropped before it was complete: the table will never be"
            );
        }
    }
}
