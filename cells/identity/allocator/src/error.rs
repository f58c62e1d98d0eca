//! Errors of allocation.

use identity_core::Range;
use labels::{Label, LabelArray};

/// An error of an allocation. Nothing has been allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The range is exhausted.
    #[error(
        "no identity left in {range}: {used} are in use, {waiting} wait until nothing can carry them any more; \
         leave labels that differ for every pod out of identities with the option labels"
    )]
    Exhausted {
        /// The range.
        range: Range,
        /// Identities with a user.
        used: usize,
        /// Identities in quarantine.
        waiting: usize,
    },
    /// The labels are new to the cluster, and it has not answered yet.
    #[error(
        "{} wait for an identity of the cluster; the tables identity-requests and k8s-writes say what holds it up",
        labels.texts().join(",")
    )]
    Waiting {
        /// The labels.
        labels: LabelArray,
    },
    /// The labels are none of a workload: other agents ignore an object with them.
    #[error("{} have no identity of the cluster: the label {label} is of the agent's own", labels.texts().join(","))]
    Reserved {
        /// The labels.
        labels: LabelArray,
        /// The one that makes them so.
        label: Label,
    },
    /// The file of identities cannot be read or written.
    #[error(transparent)]
    File(#[from] state_file::Error),
}

impl Error {
    /// Whether a retry may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Exhausted { .. } | Error::Waiting { .. } => true,
            Error::Reserved { .. } => false,
            Error::File(error) => error.is_retryable(),
        }
    }
}
