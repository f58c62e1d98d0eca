//! Errors at the start, which the operator has to fix.

use std::path::PathBuf;

/// An error in the configuration of the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {reason}; {remedy}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The I/O error.
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
        /// Its name.
        setting: &'static str,
        /// Its value.
        value: String,
        /// The fault, and the remedy.
        reason: String,
    },
}
