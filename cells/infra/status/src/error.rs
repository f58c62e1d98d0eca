//! What can keep the probes' server from starting.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Why the health of the agent cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address of the probes cannot be had.
    #[error("agent-health-port: cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Another address cannot be had.
    #[error("{option}: cannot listen on {address}")]
    ListenAt {
        /// The option that names it.
        option: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// What an option says is no address.
    #[error("{option}: '{value}' is wrong; give IP address and port, for instance 0.0.0.0:10256")]
    Address {
        /// The option.
        option: &'static str,
        /// What it says.
        value: String,
    },
    /// No thread for the probes' server.
    #[error(
        "the thread that answers probes cannot be started: raise the limit of processes (pids.max, ulimit -u)"
    )]
    Thread(#[source] io::Error),
    /// The watchdog's deadline or the interval cannot be kept.
    #[error("{option}: {value:?} is too short: give {least:?} or more")]
    TooShort {
        /// The option.
        option: &'static str,
        /// What it says.
        value: Duration,
        /// What it may say.
        least: Duration,
    },
    /// The first status could not be put together in time.
    #[error("status-collector-probe-check-timeout: no status within {0:?}")]
    NoFirstRound(Duration),
}
