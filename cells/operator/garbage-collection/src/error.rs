//! Errors.

use k8s_types::ApiError;
use k8s_types::selector::SelectorError;

/// The reason why an object is not collected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The selector of pods to restart cannot be read.
    #[error("pod-restart-selector: {value:?} is wrong: give a selector, as k8s-app=kube-dns")]
    PodSelector {
        /// The value.
        value: String,
        /// The reason.
        #[source]
        source: SelectorError,
    },
    /// Slices of objects that agents do not write.
    #[error(
        "enable-cilium-endpoint-slice: there are no CiliumEndpoints with disable-endpoint-crd=true: set one of the two to false"
    )]
    NoEndpoints,
    /// The lease has passed to another process.
    #[error("this process does not lead any more")]
    NotLeading,
    /// The API server did not execute a request.
    #[error("{verb} {object}: {error}")]
    Request {
        /// The verb, as in RBAC.
        verb: &'static str,
        /// The object.
        object: String,
        /// The error.
        #[source]
        error: ApiError,
    },
}

impl Error {
    /// Whether requests about other objects would fail as well.
    pub(crate) fn ends_run(&self) -> bool {
        match self {
            Error::Request { error, .. } => error.is_temporary(),
            Error::NotLeading | Error::NoEndpoints | Error::PodSelector { .. } => true,
        }
    }
}
