//! Errors.

use k8s_types::ApiError;

/// Why definitions are not registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no API server.
    #[error("definitions of kinds cannot be registered without a Kubernetes API server")]
    NoServer,
    /// The API server refuses a request.
    #[error("cannot {verb} the definition {name}: {error}")]
    Refused {
        /// The definition.
        name: String,
        /// The request.
        verb: &'static str,
        /// Why.
        #[source]
        error: ApiError,
    },
    /// The API server accepts no objects of the kind.
    #[error("the definition {name} is not established after {seconds} s: {reason}")]
    NotEstablished {
        /// The definition.
        name: String,
        /// How long was waited.
        seconds: u64,
        /// What the API server says.
        reason: String,
    },
    /// Another definition has its names.
    #[error(
        "the API server does not accept the names of the definition {name}: {reason}; delete or rename the definition \
         that has them"
    )]
    Names {
        /// The definition.
        name: String,
        /// What the API server says.
        reason: String,
    },
}
