//! Errors of the start, which an operator must repair.

use std::path::PathBuf;

/// Why there is no client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {reason}; {remedy}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The error of the system.
        reason: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// A file is invalid.
    #[error("file {}: {key}: {reason}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The key in it.
        key: String,
        /// The fault, and the remedy.
        reason: String,
    },
    /// An option, or a variable of the environment, is invalid.
    #[error("{setting}: {value:?} is wrong: {reason}")]
    Setting {
        /// Which one.
        setting: &'static str,
        /// Its value.
        value: String,
        /// The fault, and the remedy.
        reason: String,
    },
}
