//! Errors of a remote table.

use std::io;

/// Why there is no row.
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
    /// The connection broke, or the agent was silent for longer than it ever is.
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
        /// The agent's words.
        message: String,
    },
    /// A row is no object of the wanted type. Those behind it can still be read.
    #[error("cannot read a row")]
    Row {
        /// The fault.
        #[source]
        source: serde_json::Error,
    },
}

impl Error {
    /// Whether the same question may be answered later: the agent is away, or was.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Connect { .. } | Error::Lost { .. })
    }
}
