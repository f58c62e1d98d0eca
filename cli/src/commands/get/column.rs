//! A column of a list of objects.

/// A column after the name.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) heading: String,
    /// Whether only `-o wide` shows it.
    pub(super) wide: bool,
}

/// Returns a column that is always shown.
pub(super) fn usual(heading: &str) -> Column {
    Column { heading: heading.to_owned(), wide: false }
}

/// Returns a column of `-o wide`.
pub(super) fn wide(heading: &str) -> Column {
    Column { heading: heading.to_owned(), wide: true }
}
