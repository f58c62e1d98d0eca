//! Errors of desired routes and rules.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::FibKey;

/// A route that is not in the kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused the request, or its response was lost.
    #[error("route {key}: {source}")]
    Kernel {
        /// The route.
        key: FibKey,
        /// The cause.
        #[source]
        source: netlink::Error,
    },
    /// The routes of the kernel could not be listed.
    #[error("list routes: {0}")]
    List(#[source] netlink::Error),
    /// The device does not exist.
    #[error("route {key}: no network interface {device}")]
    NoDevice {
        /// The route.
        key: FibKey,
        /// The device's name.
        device: Arc<str>,
    },
    /// There is a route with this key that this agent has not made.
    #[error(
        "route {key}: exists already, made by another process (protocol {protocol}); it is left as it is"
    )]
    Foreign {
        /// The route.
        key: FibKey,
        /// Its protocol (`RTPROT_*`).
        protocol: u8,
    },
    /// The log of routes could not be read or written.
    #[error(transparent)]
    Log(#[from] state_file::Error),
    /// The netlink socket could not be opened.
    #[error("netlink socket: {0}")]
    Socket(#[source] io::Error),
    /// The route was tried and has failed; it is retried in the background.
    #[error("route {key}: {reason}")]
    NotInstalled {
        /// The route.
        key: FibKey,
        /// The error in its row.
        reason: String,
    },
    /// A rule was tried and has failed; it is retried in the background.
    #[error("{reason}")]
    RuleNotInstalled {
        /// The error in its row.
        reason: String,
    },
    /// The result was not known in time; the route is tried in the background.
    #[error("no result within {}ms", limit.as_millis())]
    Timeout {
        /// The limit of the wait.
        limit: Duration,
    },
    /// The agent stops.
    #[error("the agent stops")]
    Stopped,
}
