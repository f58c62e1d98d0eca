//! Errors; each is returned before any change.

use std::sync::Arc;
use std::time::Duration;

use crate::key::KeyParseError;
use crate::obj::Obj;

/// A table could not be registered or asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Table names are parts of commands and paths.
    #[error("table name `{name}` is not of the form [a-z][a-z0-9_-]{{0,30}}")]
    InvalidTableName {
        /// As given.
        name: &'static str,
    },
    /// One database holds one table of a name.
    #[error("table `{name}` is registered already")]
    DuplicateTable {
        /// As given.
        name: &'static str,
    },
    /// Index names are unique within a table and not empty; those that start with `__` are reserved.
    #[error("table `{table}`: index name `{index}` is empty, reserved or used twice")]
    InvalidIndexName {
        /// The table.
        table: &'static str,
        /// As given.
        index: &'static str,
    },
    /// Tables with a unique secondary index say so, since inserts can fail.
    #[error("table `{table}`: index `{index}` is unique, but the table does not set UNIQUE_SECONDARY")]
    UndeclaredUnique {
        /// The table.
        table: &'static str,
        /// The index.
        index: &'static str,
    },
    /// No table has this name.
    #[error("no table `{name}`")]
    UnknownTable {
        /// As given.
        name: String,
    },
    /// The table has no such index.
    #[error("table `{table}` has no index `{index}`, it has: {known}")]
    UnknownIndex {
        /// The table.
        table: &'static str,
        /// As given.
        index: String,
        /// Those that there are.
        known: String,
    },
    /// A text is not a key of the index.
    #[error("table `{table}`, index `{index}`: {source}")]
    Key {
        /// The table.
        table: &'static str,
        /// The index.
        index: &'static str,
        /// The fault.
        source: KeyParseError,
    },
}

/// The changes since a revision cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SinceError {
    /// Rows were deleted after it, and it is not known any more which: begin anew with all rows.
    #[error(
        "table `{table}`: what changed since revision {revision} is not known, deletes up to {forgotten} are forgotten"
    )]
    Forgotten {
        /// The table.
        table: &'static str,
        /// As given.
        revision: u64,
        /// The newest delete that is not known.
        forgotten: u64,
    },
    /// The revision is another table's, or of another run of the program.
    #[error("table `{table}` has not come to revision {revision}, it is at {now}")]
    Ahead {
        /// The table.
        table: &'static str,
        /// As given.
        revision: u64,
        /// The table's.
        now: u64,
    },
}

/// A row was not there, or not as wanted, in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotInTime {
    /// The table.
    pub table: &'static str,
    /// How long it was waited.
    pub timeout: Duration,
    /// The sources that have yet to fill the table.
    pub pending: Vec<Arc<str>>,
}

impl std::fmt::Display for NotInTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "table `{}`: no row as wanted within {:?}", self.table, self.timeout)?;
        match &*self.pending {
            [] => Ok(()),
            pending => write!(f, ", it is not complete and waits for {}", pending.join(", ")),
        }
    }
}

impl std::error::Error for NotInTime {}

/// Another row has a key that must be unique. Nothing was changed.
pub struct Conflict<T> {
    /// The table.
    pub table: &'static str,
    /// The unique index.
    pub index: &'static str,
    /// The row that has the key.
    pub existing: Obj<T>,
}

impl<T> std::fmt::Display for Conflict<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "table `{}`: another object has the same key of unique index `{}`", self.table, self.index)
    }
}

impl<T> std::fmt::Debug for Conflict<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conflict")
            .field("table", &self.table)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

impl<T> std::error::Error for Conflict<T> {}

/// A compare-and-swap or compare-and-delete did not happen. Nothing was changed, no watch is woken.
pub enum CasError<T> {
    /// There is no row with this primary key.
    NotFound,
    /// The row has another revision: this is how it is now.
    Changed(Obj<T>),
    /// The new row's key of a unique index belongs to another row.
    Conflict(Conflict<T>),
}

impl<T> std::fmt::Display for CasError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CasError::NotFound => write!(f, "object not found"),
            CasError::Changed(now) => write!(f, "object has changed, its revision is {}", now.revision()),
            CasError::Conflict(conflict) => conflict.fmt(f),
        }
    }
}

impl<T> std::fmt::Debug for CasError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CasError({self})")
    }
}

impl<T> std::error::Error for CasError<T> {}
