//! Errors.

use identity_core::FilterError;

/// Why identities cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The labels of identities are not known.
    #[error(transparent)]
    Filter(#[from] FilterError),
}
