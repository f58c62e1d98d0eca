//! Rows written by hand.

use std::fmt;

use serde_json::Value;

use super::TableDisplay;
use crate::key::KeyBuf;
use crate::obj::Obj;
use crate::query::Query;
use crate::spec::TableSpec;
use crate::table::RwTable;

/// The operation on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Edit {
    /// Insert it, or replace the one with its primary key.
    Insert,
    /// Delete the one with its primary key; other fields are ignored.
    Delete,
}

/// A row that could not be created or inserted.
#[derive(Debug)]
#[non_exhaustive]
pub enum EditError {
    /// The table accepts no rows from tools: only its owner creates them.
    NotByHand(&'static str),
    /// A value cannot be converted into a row.
    #[non_exhaustive]
    Value {
        /// The position of the value, from 0.
        at: usize,
        /// The error of the conversion.
        source: serde_json::Error,
    },
    /// Another row has a key that must be unique.
    #[non_exhaustive]
    Conflict {
        /// The position of the value, from 0.
        at: usize,
        /// The key, and the row that has it.
        conflict: String,
    },
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EditError::NotByHand(table) => write!(f, "rows of table `{table}` are made by its owner alone"),
            EditError::Value { source, .. } => source.fmt(f),
            EditError::Conflict { conflict, .. } => f.write_str(conflict),
        }
    }
}

impl std::error::Error for EditError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            EditError::Value { source, .. } => Some(source),
            EditError::NotByHand(_) | EditError::Conflict { .. } => None,
        }
    }
}

#[track_caller]
pub(super) fn edit<T: TableDisplay>(
    table: &RwTable<T>,
    edit: Edit,
    rows: Vec<Value>,
) -> Result<(), EditError> {
    let make = T::FROM_VALUE.ok_or(EditError::NotByHand(T::NAME))?;
    let mut w = table.write();
    for (at, value) in rows.into_iter().enumerate() {
        let row = make(value).map_err(|source| EditError::Value { at, source })?;
        match edit {
            Edit::Insert => {
                let inserted = w.try_insert(row);
                inserted.map_err(|conflict| EditError::Conflict { at, conflict: conflict.to_string() })?;
            }
            Edit::Delete => {
                let _old = w.delete(of(&row));
            }
        }
    }
    w.commit();
    Ok(())
}

#[track_caller]
pub(super) fn delete<'r, T: TableSpec>(table: &RwTable<T>, rows: impl Iterator<Item = &'r Obj<T>>) -> usize {
    table.transact(|w| rows.filter(|row| w.delete(of::<T>(row)).is_some()).count()).0
}

/// Returns a query for the row with the primary key of this one.
fn of<T: TableSpec>(row: &T) -> Query<T> {
    Query::new(None, KeyBuf::of(&row.key()))
}
