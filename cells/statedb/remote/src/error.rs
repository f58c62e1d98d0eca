//! Errors of a remote table.

use std::io;

/// An error in the query of a remote table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No agent listens at the address.
    #[error("cannot connect to {agent}")]
    Connect {
        /// The address.
        agent: String,
        /// The error of the socket.
        #[source]
        source: io::Error,
    },
    /// The connection broke, or the agent sent nothing, not even a keep-alive line, until the timeout.
    #[error("lost the agent")]
    Lost {
        /// The error of the socket.
        #[source]
        source: io::Error,
    },
    /// The agent has no such table or index, or does not understand the key.
    #[error("the agent answers {status}: {message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The agent's error message.
        message: String,
    },
    /// A row could not be deserialized. Later rows can still be read.
    #[error("cannot read a row")]
    Row {
        /// The error of the deserialization.
        #[source]
        source: serde_json::Error,
    },
}

impl Error {
    /// Whether the same query may succeed later: the agent was unavailable or the connection was lost.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Connect { .. } | Error::Lost { .. })
    }
}
