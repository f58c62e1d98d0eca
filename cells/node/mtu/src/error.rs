//! Errors of changes in a pod.

use std::io;
use std::path::PathBuf;

use devices::NetlinkError;

/// A pod's MTU could not be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The network namespace could not be entered.
    #[error("network namespace {}: {source}", path.display())]
    Namespace {
        /// Its file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A link or route could not be read or changed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

impl Error {
    /// Whether the agent lacks the capability to enter namespaces, which a repetition does not change.
    #[must_use]
    pub fn is_permission_denied(&self) -> bool {
        matches!(self, Self::Namespace { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }
}
