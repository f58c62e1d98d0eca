//! The presentation of rows by their type.

#[cfg(feature = "hive")]
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;

#[cfg(feature = "hive")]
use crate::key::KeyBuf;
use crate::spec::TableSpec;

/// The columns and the JSON of a table's rows, for tools that do not know the row's type: shells, HTTP, scripts.
/// [`derive(Table)`](derive@crate::Table) generates the implementation, unless columns are computed. Tables that are
/// registered by [`Db::table_with_display`](crate::Db::table_with_display) are listed with it.
pub trait TableDisplay: TableSpec + Serialize {
    /// The conversion of a JSON value into a row, for tables whose rows tools may write ([`AnyTable::edit`]); a delete
    /// uses only the key. `None`: only the table's owner creates rows.
    ///
    /// [`AnyTable::edit`]: crate::AnyTable::edit
    const FROM_VALUE: Option<FromValue<Self>> = None;

    /// Returns the headings of the columns of [`row`](Self::row).
    fn columns() -> &'static [&'static str];

    /// Returns the row as tables print it, one text for each column.
    fn row(&self) -> Vec<String>;

    /// Returns the content of the row's YAML, as JSON, if it differs from the row's JSON with names in lower case: for
    /// names in maps that keep their case, other representations of absent values, nested structs.
    fn yaml(&self) -> Option<String> {
        None
    }
}

/// Returns the label of a row in messages: its first column, or its key in hexadecimal.
#[cfg(feature = "hive")]
pub(crate) fn label<T: TableDisplay>(row: &T) -> String {
    let column = catch_unwind(AssertUnwindSafe(|| row.row().into_iter().next())).ok().flatten();
    column.unwrap_or_else(|| format!("{:02x?}", KeyBuf::of(&row.key()).as_bytes()))
}

/// A function that converts a JSON value into a row.
pub type FromValue<T> = fn(serde_json::Value) -> serde_json::Result<T>;
