//! Changes of a table whose row type is not known.

use std::sync::Arc;

use super::{AnyObj, TableDisplay};
use crate::changes::{Change, Changes};
use crate::watch::Watch;

/// A reader of the committed changes of a table, from [`AnyTable::changes`](crate::AnyTable::changes). While it exists,
/// the table keeps deleted rows until it has read them.
pub struct AnyChanges(Box<dyn Source>);

/// A change of one row, coalesced: only the latest state of each primary key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AnyChange {
    /// The row as it is now, or as it last was before its deletion.
    pub object: AnyObj,
    /// The revision of the write or the delete.
    pub revision: u64,
    /// Whether the row was deleted.
    pub deleted: bool,
}

impl AnyChanges {
    pub(super) fn new<T: TableDisplay>(changes: Changes<T>) -> Self {
        AnyChanges(Box::new(changes))
    }

    /// Names the reader; see [`Changes::named`].
    pub fn named(mut self, name: &str) -> Self {
        self.0.name(name);
        self
    }

    /// Returns at most `limit` changes up to now, oldest first, and a watch for more, which is already closed if the
    /// limit cut some off.
    pub fn take(&mut self, limit: usize) -> (Vec<AnyChange>, Watch) {
        self.0.take(limit)
    }
}

trait Source: Send {
    fn name(&mut self, name: &str);
    fn take(&mut self, limit: usize) -> (Vec<AnyChange>, Watch);
}

impl<T: TableDisplay> Source for Changes<T> {
    fn name(&mut self, name: &str) {
        self.set_name(name);
    }

    fn take(&mut self, limit: usize) -> (Vec<AnyChange>, Watch) {
        let snapshot = self.snapshot();
        let (batch, watch) = Changes::read(self, &snapshot, limit);
        let untyped = |Change { object, revision, deleted }| AnyChange {
            object: AnyObj(Arc::new(object)),
            revision,
            deleted,
        };
        (batch.into_iter().map(untyped).collect(), watch)
    }
}
