//! Errors of requests to the kernel.

use std::io;

/// A request to rtnetlink that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetlinkError {
    /// The kernel refused the request, or its response was lost or could not be decoded.
    #[error("netlink: {request}: {source}")]
    Request {
        /// The request, with its subject.
        request: String,
        /// The cause.
        #[source]
        source: netlink::Error,
    },
    /// The socket could not be opened or read.
    #[error("netlink socket: {0}")]
    Socket(#[from] io::Error),
    /// The interface does not exist.
    #[error("no network interface {0}")]
    NoLink(String),
}

impl NetlinkError {
    /// Whether the same request may succeed a moment later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Request { source, .. } => source.is_retryable(),
            Self::Socket(source) => source.raw_os_error().is_some_and(netlink::is_retryable),
            Self::NoLink(_) => false,
        }
    }

    /// Whether the object exists already.
    #[must_use]
    pub fn is_exists(&self) -> bool {
        matches!(self, Self::Request { source, .. } if source.is_exists())
    }

    /// Whether the kernel has no route to the address, or one of type unreachable, prohibit or blackhole.
    pub(crate) fn is_unreachable(&self) -> bool {
        let unreachable = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL];
        matches!(self, Self::Request { source, .. } if source.errno().is_some_and(|errno| unreachable.contains(&errno)))
    }

    /// Returns the kernel's error code, if it refused the request.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Request { source, .. } => source.errno(),
            _ => None,
        }
    }

    /// Whether the object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::Request { source, .. } => source.is_not_found(),
            Self::Socket(_) => false,
            Self::NoLink(_) => true,
        }
    }
}
