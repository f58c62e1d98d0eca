//! Rows written by hand.

use serde_json::Value;

use crate::key::KeyBuf;
use crate::obj::Obj;
use crate::query::Query;
use crate::spec::TableSpec;
use crate::table::RwTable;

/// The operation on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// It takes the place of the one with its primary key.
    Insert,
    /// The one with its primary key goes; only the key counts.
    Delete,
}

/// A row could not be made or inserted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// Rows of the table are made by its owner alone.
    #[error("rows of table `{0}` are made by its owner alone")]
    NotByHand(&'static str),
    /// The value at this place, from 0, is no row.
    #[error("{source}")]
    Value {
        /// Which of the values.
        at: usize,
        /// The fault.
        source: serde_json::Error,
    },
    /// Another row has a key that must be unique.
    #[error("{conflict}")]
    Conflict {
        /// Which of the values.
        at: usize,
        /// The key, and the row that has it.
        conflict: String,
    },
}

#[track_caller]
pub(super) fn edit<T: TableSpec>(table: &RwTable<T>, edit: Edit, rows: Vec<Value>) -> Result<(), EditError> {
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

/// The row with the primary key of this one.
fn of<T: TableSpec>(row: &T) -> Query<T> {
    Query::new(None, KeyBuf::of(&row.key()))
}
