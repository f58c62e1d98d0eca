//! Errors of requests that are refused before their handler runs, with Cilium's codes and texts; and errors of the
//! server itself.

use std::io;
use std::path::PathBuf;

use http::{Method, StatusCode};

use crate::operation::Operation;

/// An error of a request that is refused before its handler runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadRequest {
    #[error("path {path} was not found")]
    UnknownPath { path: String },
    #[error("method {method} is not allowed, but [{}] are", list(allowed, ","))]
    WrongMethod { method: Method, allowed: Vec<Method> },
    #[error("unsupported media type requested, only [application/json] are available")]
    NotAcceptable,
    #[error("unsupported media type {found:?}, only [application/json] are allowed")]
    ContentType { found: String },
    #[error("parsing {name} body from \"\" failed, because {reason}")]
    Unreadable { name: &'static str, reason: String },
    #[error("{name} in {place} is required")]
    Required { name: &'static str, place: &'static str },
    #[error("{name} in {place} must be of type {kind}: {value:?}")]
    WrongType { name: &'static str, place: &'static str, kind: &'static str, value: String },
    #[error("{name} in {place} should be one of [{}]", permitted.join(" "))]
    NotOneOf { name: &'static str, place: &'static str, permitted: &'static [&'static str] },
    #[error("{0}")]
    Violation(api_models::Violation),
    #[error("request body of more than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("request body was not received within {seconds} s")]
    TooSlow { seconds: u64 },
}

impl BadRequest {
    /// Returns the code in the body.
    pub(crate) fn code(&self) -> i64 {
        match self {
            Self::Violation(violation) => violation.code(),
            Self::WrongType { .. } => 601,
            Self::Required { .. } => 602,
            Self::NotOneOf { .. } => 606,
            _ => i64::from(self.status().as_u16()),
        }
    }

    /// Returns the HTTP status: 422 for violated rules, whatever the code in the body.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::UnknownPath { .. } => StatusCode::NOT_FOUND,
            Self::WrongMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
            Self::ContentType { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Unreadable { .. } => StatusCode::BAD_REQUEST,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        }
    }
}

pub(crate) fn list(methods: &[Method], separator: &str) -> String {
    methods.iter().map(Method::as_str).collect::<Vec<_>>().join(separator)
}

/// An error of setting up the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two cells claim one operation.
    #[error("operation {} is claimed twice", .0.name())]
    ClaimedTwice(Operation),
    /// `--enable-cilium-api-server-access` has a `*` elsewhere than at the end.
    #[error("enable-cilium-api-server-access: Unsupported API wildcard: {0:?}: * may only stand at the end")]
    Wildcard(String),
    /// `--enable-cilium-api-server-access` has a name that no operation has.
    #[error("enable-cilium-api-server-access: Unknown API flag: {name:?}{}", nearest.map(|n| format!(", did you mean {n}?")).unwrap_or_default())]
    UnknownOperation {
        /// The name given.
        name: String,
        /// The nearest one known.
        nearest: Option<&'static str>,
    },
    /// `--api-rate-limit` cannot be parsed.
    #[error("api-rate-limit: {0}")]
    RateLimit(String),
    /// Another agent serves the socket.
    #[error("another agent serves {0}: stop it, or give this one its own --socket-path and --state-dir")]
    InUse(PathBuf),
    /// The file at the socket's path is not a socket.
    #[error("{path} exists and is not a socket: remove it or choose another --{option}")]
    NotASocket {
        /// The path.
        path: PathBuf,
        /// The option that sets it.
        option: &'static str,
    },
    /// The socket cannot be created.
    #[error("cannot {action} {path}")]
    Socket {
        /// The failed operation.
        action: &'static str,
        /// The path it was applied to.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}
