//! Errors. Each is returned before anything is changed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::key::KeyParseError;
use crate::obj::Obj;

/// An error in the registration or an untyped query of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The name is malformed. Table names are parts of commands and URL paths, so their form is restricted.
    #[non_exhaustive]
    InvalidTableName {
        /// As given.
        name: &'static str,
    },
    /// The database already has a table of this name.
    #[non_exhaustive]
    DuplicateTable {
        /// As given.
        name: &'static str,
    },
    /// The index name is empty, reserved (starts with `__`) or not unique within the table.
    #[non_exhaustive]
    InvalidIndexName {
        /// The table.
        table: &'static str,
        /// As given.
        index: &'static str,
    },
    /// The table has a unique secondary index, but does not set `UNIQUE_SECONDARY`, which makes inserts fallible.
    #[non_exhaustive]
    UndeclaredUnique {
        /// The table.
        table: &'static str,
        /// The index.
        index: &'static str,
    },
    /// No table has this name.
    #[non_exhaustive]
    UnknownTable {
        /// As given.
        name: String,
    },
    /// The table has no such index.
    #[non_exhaustive]
    UnknownIndex {
        /// The table.
        table: &'static str,
        /// As given.
        index: String,
        /// The existing indexes.
        known: String,
    },
    /// The text is not a key of the index.
    #[non_exhaustive]
    Key {
        /// The table.
        table: &'static str,
        /// The index.
        index: &'static str,
        /// The fault.
        source: KeyParseError,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InvalidTableName { name } => {
                write!(f, "table name `{name}` is not of the form [a-z][a-z0-9_-]{{0,30}}")
            }
            Error::DuplicateTable { name } => write!(f, "table `{name}` is registered already"),
            Error::InvalidIndexName { table, index } => {
                write!(f, "table `{table}`: index name `{index}` is empty, reserved or used twice")
            }
            Error::UndeclaredUnique { table, index } => {
                write!(
                    f,
                    "table `{table}`: index `{index}` is unique, but the table does not set UNIQUE_SECONDARY"
                )
            }
            Error::UnknownTable { name } => write!(f, "no table `{name}`"),
            Error::UnknownIndex { table, index, known } => {
                write!(f, "table `{table}` has no index `{index}`, it has: {known}")
            }
            Error::Key { table, index, source } => write!(f, "table `{table}`, index `{index}`: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Key { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The changes since a revision are not available.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SinceError {
    /// Deletes after the revision are no longer kept: start over with all rows.
    #[non_exhaustive]
    Forgotten {
        /// The table.
        table: &'static str,
        /// As given.
        revision: u64,
        /// The revision of the newest delete that is no longer kept.
        forgotten: u64,
    },
    /// The table has not reached the revision: the revision is from another table or a previous run of the process.
    #[non_exhaustive]
    Ahead {
        /// The table.
        table: &'static str,
        /// As given.
        revision: u64,
        /// The table's current revision.
        now: u64,
    },
}

impl fmt::Display for SinceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SinceError::Forgotten { table, revision, forgotten } => write!(
                f,
                "table `{table}`: what changed since revision {revision} is not known, deletes up to {forgotten} are forgotten"
            ),
            SinceError::Ahead { table, revision, now } => {
                write!(f, "table `{table}` has not come to revision {revision}, it is at {now}")
            }
        }
    }
}

impl std::error::Error for SinceError {}

/// No row of the query satisfied the condition within the timeout.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotInTime {
    /// The table.
    pub table: &'static str,
    /// The timeout.
    pub timeout: Duration,
    /// The sources that have yet to fill the table.
    pub pending: Vec<Arc<str>>,
}

impl fmt::Display for NotInTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table `{}`: no row as wanted within {:?}", self.table, self.timeout)?;
        match &*self.pending {
            [] => Ok(()),
            pending => write!(f, ", it is not complete and waits for {}", pending.join(", ")),
        }
    }
}

impl std::error::Error for NotInTime {}

/// Another row has a key that must be unique. Nothing was changed.
#[non_exhaustive]
pub struct Conflict<T> {
    /// The table.
    pub table: &'static str,
    /// The unique index.
    pub index: &'static str,
    /// The row that has the key.
    pub existing: Obj<T>,
}

impl<T> fmt::Display for Conflict<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table `{}`: another object has the same key of unique index `{}`", self.table, self.index)
    }
}

impl<T> fmt::Debug for Conflict<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conflict")
            .field("table", &self.table)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

impl<T> std::error::Error for Conflict<T> {}

/// A failed compare-and-swap or compare-and-delete. Nothing was changed and no watch is closed.
#[cfg(feature = "unstable")]
#[non_exhaustive]
pub enum CasError<T> {
    /// There is no row with this primary key.
    NotFound,
    /// The row has another revision; contains the current row.
    Changed(Obj<T>),
    /// Another row already has the key that the new row has in a unique index.
    Conflict(Conflict<T>),
}

#[cfg(feature = "unstable")]
impl<T> fmt::Display for CasError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CasError::NotFound => write!(f, "object not found"),
            CasError::Changed(now) => write!(f, "object has changed, its revision is {}", now.revision()),
            CasError::Conflict(conflict) => conflict.fmt(f),
        }
    }
}

#[cfg(feature = "unstable")]
impl<T> fmt::Debug for CasError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CasError({self})")
    }
}

#[cfg(feature = "unstable")]
impl<T> std::error::Error for CasError<T> {}
