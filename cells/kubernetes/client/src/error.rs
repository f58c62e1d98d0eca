//! Errors of the start: what an operator must mend.

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
        /// What the system says.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A file is not what it should be.
    #[error("file {}: {key}: {reason}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The key in it.
        key: String,
        /// The fault, and the remedy.
        reason: String,
    },
    /// An option, or a variable of the environment, is not what it should be.
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
