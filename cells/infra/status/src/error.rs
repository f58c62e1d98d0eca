//! Errors that prevent the start of the probes' server.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// An error of serving the agent's health.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address of the probes cannot be bound.
    #[error("agent-health-port: cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Another address cannot be bound.
    #[error("{option}: cannot listen on {address}")]
    ListenAt {
        /// The option that configures it.
        option: &'static str,
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The value of an option is not an address.
    #[error("{option}: '{value}' is wrong; give IP address and port, for instance 0.0.0.0:10256")]
    Address {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
    },
    /// The thread of the probes' server cannot be started.
    #[error(
        "the thread that answers probes cannot be started: raise the limit of processes (pids.max, ulimit -u)"
    )]
    Thread(#[source] io::Error),
    /// The watchdog's deadline or the interval is too short.
    #[error("{option}: {value:?} is too short: give {least:?} or more")]
    TooShort {
        /// The option.
        option: &'static str,
        /// Its value.
        value: Duration,
        /// The smallest valid value.
        least: Duration,
    },
    /// The first round did not complete in time.
    #[error("status-collector-probe-check-timeout: no status within {0:?}")]
    NoFirstRound(Duration),
}
