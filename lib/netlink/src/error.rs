//! Errors of requests and answers.

use std::io;

use netlink_packet_core::DecodeError;

/// A request that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused the request.
    #[error("{source}{}", explained(explanation.as_deref()))]
    Refused {
        /// The kernel's error code.
        #[source]
        source: io::Error,
        /// The kernel's text beside the code (extended acknowledgement), if it has one.
        explanation: Option<Box<str>>,
    },
    /// The socket could not be opened, written or read.
    #[error("netlink socket: {0}")]
    Socket(#[from] io::Error),
    /// The socket's receive buffer was full: answers were lost.
    #[error("netlink socket: answers were lost, as its receive buffer was full")]
    Overrun,
    /// Each dump was interrupted by a change: it would have gaps.
    #[error("interrupted by changes {attempts} times in a row; try again")]
    Interrupted {
        /// The number of dumps.
        attempts: u32,
    },
    /// A response is inconsistent, or is not for this socket.
    #[error("answer not understood: {0}")]
    Malformed(#[from] Malformed),
    /// An answer's body cannot be decoded.
    #[error("answer of type {kind} not understood: {source}")]
    Decode {
        /// The answer's type.
        kind: u16,
        /// The fault.
        #[source]
        source: DecodeError,
    },
}

/// A fault of a packet, a message or an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The packet does not fit into the buffer.
    #[error("packet of {length} bytes, {capacity} fit into the buffer")]
    Packet {
        /// Its length.
        length: usize,
        /// The buffer's size.
        capacity: usize,
    },
    /// The message's length is shorter than a header, or exceeds the packet.
    #[error("message of {length} bytes in {available} bytes of a packet")]
    MessageLength {
        /// The length in its header.
        length: usize,
        /// Bytes left in the packet.
        available: usize,
    },
    /// The body is too short for its type.
    #[error("message of type {kind} with a body of {found} bytes, expected at least {expected}")]
    Body {
        /// The message's type.
        kind: u16,
        /// Its length.
        found: usize,
        /// The least length.
        expected: usize,
    },
    /// The attribute's length is shorter than a header, or exceeds the message.
    #[error("attribute of {length} bytes in {available} bytes of a message")]
    AttributeLength {
        /// The length in its header.
        length: usize,
        /// Bytes left in the message.
        available: usize,
    },
    /// The attribute's value has another length than its type.
    #[error("attribute {kind} with a value of {found} bytes, expected {expected}")]
    AttributeValue {
        /// The attribute's type.
        kind: u16,
        /// Its length.
        found: usize,
        /// The length of its type.
        expected: usize,
    },
    /// The error code is positive, or too small to be one.
    #[error("error code {code}")]
    ErrorCode {
        /// The code.
        code: i32,
    },
    /// The answer is for another socket.
    #[error("answer for port {found}, this socket has port {expected}")]
    Port {
        /// The port in its header.
        found: u32,
        /// The socket's.
        expected: u32,
    },
}

/// Whether an error code is a lack of resources or an interruption: the same call may succeed a moment later.
#[must_use]
pub fn is_retryable(errno: i32) -> bool {
    matches!(
        errno,
        libc::EINTR | libc::EAGAIN | libc::ENOMEM | libc::EBUSY | libc::ENFILE | libc::EMFILE | libc::ENOBUFS
    )
}

fn explained(explanation: Option<&str>) -> String {
    explanation.map(|text| format!(" ({text})")).unwrap_or_default()
}

impl Error {
    /// Returns the error code of the kernel's refusal, or of the system call.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } | Self::Socket(source) => source.raw_os_error(),
            Self::Overrun => Some(libc::ENOBUFS),
            Self::Interrupted { .. } | Self::Malformed(_) | Self::Decode { .. } => None,
        }
    }

    /// Whether the same request may succeed a moment later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Interrupted { .. }) || self.errno().is_some_and(is_retryable)
    }

    /// Whether the object exists already.
    #[must_use]
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }

    /// Whether the object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self.errno(), Some(libc::ENOENT | libc::ENODEV | libc::ESRCH | libc::EADDRNOTAVAIL))
    }
}
