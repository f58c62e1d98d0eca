//! Errors.

use std::path::PathBuf;
use std::time::Duration;

/// An error that ends the operator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no API server.
    #[error(
        "the operator needs a Kubernetes API server: give k8s-kubeconfig-path or k8s-api-server-urls, or run it as a pod"
    )]
    NoServer,
    /// The host's name cannot be read.
    #[error("{path}: {source}", path = path.display())]
    HostName {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The lease could not be renewed in time.
    #[error(
        "leader election lost: lease {namespace}/{name} was not renewed for {silence:?}; the last attempt: {reason}"
    )]
    Lost {
        /// The lease's namespace.
        namespace: String,
        /// The lease's name.
        name: &'static str,
        /// Time since the last renewal.
        silence: Duration,
        /// Why it was not renewed.
        reason: String,
    },
    /// Cells of the leader did not start.
    #[error("the leader's cells did not start: {0}")]
    Start(#[source] hive::HiveError),
}
