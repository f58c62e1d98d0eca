//! What can go wrong with netlink.

use std::io;

/// A netlink request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetlinkError {
    /// The kernel refused the request.
    #[error("netlink: {request}: {source}")]
    Refused {
        /// The request, with its subject.
        request: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The socket could not be made, written or read.
    #[error("netlink socket: {0}")]
    Socket(#[from] io::Error),
    /// The kernel's answer could not be understood.
    #[error("netlink: {request}: answer not understood: {detail}")]
    Answer {
        /// The request.
        request: String,
        /// The fault of the answer.
        detail: String,
    },
    /// A list changed each time while the kernel wrote it: it would have gaps.
    #[error("netlink: {request}: interrupted by changes {attempts} times in a row; try again")]
    Interrupted {
        /// The request.
        request: String,
        /// How often.
        attempts: usize,
    },
    /// The given interface does not exist.
    #[error("no network interface {0}")]
    NoLink(String),
}

impl NetlinkError {
    fn code(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Whether the same request may succeed a moment later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Interrupted { .. } => true,
            Self::Refused { source, .. } | Self::Socket(source) => {
                // EINTR, EAGAIN, ENOMEM, EBUSY, ENFILE, EMFILE, ENOBUFS.
                matches!(source.raw_os_error(), Some(4 | 11 | 12 | 16 | 23 | 24 | 105))
            }
            Self::Answer { .. } | Self::NoLink(_) => false,
        }
    }

    /// The object exists already (`EEXIST`).
    #[must_use]
    pub fn is_exists(&self) -> bool {
        self.code() == Some(17)
    }

    /// The object does not exist (`ENOENT`, `ENODEV`, `ESRCH`, `EADDRNOTAVAIL`).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NoLink(_)) || matches!(self.code(), Some(2 | 19 | 3 | 99))
    }
}
