//! Errors.

use k8s_types::ApiError;

/// Why a certificate cannot be signed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// A name or a key has no form in a certificate.
    #[error("{0}")]
    Form(#[from] rcgen::Error),
    /// The name of the authority has parts or encodings that are lost when it is repeated.
    #[error(
        "the subject of the authority cannot be repeated as the issuer: give an authority with a plain name"
    )]
    Name,
}

/// Why no certificates are made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The certificates to make are invalid.
    #[error("config: {reason}")]
    Config {
        /// Path and fault.
        reason: String,
    },
    /// There is no API server.
    #[error("there is no API server: run in a pod, or give k8s-kubeconfig-path")]
    NoServer,
    /// The secret of the authority does not exist, and none may be created.
    #[error("secret {secret}: does not exist: create it with ca.crt and ca.key, or set ca-generate")]
    NoAuthority {
        /// Namespace and name.
        secret: String,
    },
    /// The secret has no authority that can sign.
    #[error("secret {secret}: {reason}: repair the secret, or delete it for a new authority")]
    Authority {
        /// Namespace and name.
        secret: String,
        /// The fault.
        reason: String,
    },
    /// A certificate cannot be made.
    #[error("secret {secret}: the certificate cannot be made: {source}")]
    Certificate {
        /// Namespace and name.
        secret: String,
        /// The fault.
        #[source]
        source: SignError,
    },
    /// The API server has refused a request.
    #[error("secret {secret}: {source}")]
    Request {
        /// Namespace and name.
        secret: String,
        /// The server's error.
        #[source]
        source: ApiError,
    },
    /// The API server did not serve all requests in time.
    #[error("the secrets were not written within {seconds} s: {last}")]
    Timeout {
        /// The limit in seconds.
        seconds: u64,
        /// The last temporary error.
        last: String,
    },
}
