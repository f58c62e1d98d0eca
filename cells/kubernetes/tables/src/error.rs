//! Why there are no cluster objects.

/// The errors that keep the cell from starting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is wrong.
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
