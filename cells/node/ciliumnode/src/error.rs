//! Errors of the options.

/// An invalid option.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A pattern is no regular expression.
    #[error("option exclude-node-label-patterns: '{pattern}' is no regular expression: {source}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The error.
        #[source]
        source: regex::Error,
    },
}
