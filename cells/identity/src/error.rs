//! What can go wrong with numbers.

use std::io;
use std::path::PathBuf;

use crate::range::Range;

/// Why there is no number. Nothing has been given out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is none left.
    #[error(
        "no identity left in {range}: {used} are in use, {waiting} wait until nothing can carry them any more; \
         leave labels that differ for every pod out of identities with the option labels"
    )]
    Exhausted {
        /// Where was looked.
        range: Range,
        /// Numbers with a user.
        used: usize,
        /// Numbers that had one until lately.
        waiting: usize,
    },
    /// The file cannot be written.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("{path} holds no identities that can be read: {problem}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    /// Whether trying again later can help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Exhausted { .. } | Error::Io { .. })
    }
}
