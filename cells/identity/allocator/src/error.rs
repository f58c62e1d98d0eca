//! What can go wrong with numbers.

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
    /// The file of numbers cannot be read or written.
    #[error(transparent)]
    File(#[from] state_file::Error),
}

impl Error {
    /// Whether trying again later can help.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Exhausted { .. } => true,
            Error::File(error) => error.is_retryable(),
        }
    }
}
