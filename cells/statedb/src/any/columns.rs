//! Column texts, for `#[derive(Table)]`.

use std::fmt::Display;

use serde::de::DeserializeOwned;

/// Returns the text of a field, by its `Display`.
pub fn column<T>(field: &T) -> String
where
    T: Display + ?Sized, // remedy: `#[column(with = function)]` or `#[column(skip)]`
{
    field.to_string()
}

/// Returns the text of the value that a function computes from a field.
pub fn shown<'f, T: ?Sized, R: Display>(field: &'f T, with: impl FnOnce(&'f T) -> R) -> String {
    with(field).to_string()
}

/// Returns the text of a list, joined into one cell.
pub fn joined(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

/// Converts a JSON value into a row.
pub fn from_value<T>(value: serde_json::Value) -> serde_json::Result<T>
where
    T: DeserializeOwned, // remedy: `#[derive(Deserialize)] #[serde(default)]`, for `#[table(insertable)]`
{
    serde_json::from_value(value)
}
