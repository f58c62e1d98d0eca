//! The outcome of a change of files.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::last_good::Taken;
use crate::in_memory_source::Change;
use crate::object::ObjectKey;
use crate::source_file::SourceFile;

/// The outcome of a change of files.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) changes: Vec<Change>,
    /// The new rows of files, and the names of files without a row.
    pub(crate) rows: Vec<SourceFile>,
    pub(crate) gone: Vec<Arc<str>>,
    /// The valid objects of files, for the next run; none for removed files.
    pub(crate) good: Vec<(Arc<str>, Option<Good>)>,
}

/// The valid objects of a file: those of its manifests, and those kept from an earlier version.
#[derive(Debug, Default)]
pub(crate) struct Good {
    pub(crate) taken: Vec<Taken>,
    pub(crate) kept: BTreeSet<ObjectKey>,
}

impl Outcome {
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.rows.is_empty() && self.gone.is_empty() && self.good.is_empty()
    }

    /// Adds a later outcome, which takes precedence.
    pub(crate) fn add(&mut self, later: Outcome) {
        self.changes.extend(later.changes);
        for row in &later.rows {
            self.gone.retain(|file| *file != row.file);
        }
        for file in &later.gone {
            self.rows.retain(|row| row.file != *file);
        }
        self.rows.extend(later.rows);
        self.gone.extend(later.gone);
        self.good.extend(later.good);
    }
}
