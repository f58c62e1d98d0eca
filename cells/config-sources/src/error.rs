//! What can be wrong.

/// Why the configuration of the cluster cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option has a value that it cannot have.
    #[error("option {option}: {value:?} is wrong: {reason}; give a list of objects such as {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
        /// What would be right.
        expected: &'static str,
    },
}
