//! Errors of the cell.

/// An error that prevents the start of the cell.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is invalid.
    #[error("option {option}: '{value}' is wrong: {reason}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// A description of valid values.
        reason: &'static str,
    },
}
