//! Errors.

use std::ops::RangeInclusive;

/// Why a proxy gets no port.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another proxy has the port.
    #[error("port {port} of proxy {name} is that of proxy {other}")]
    Taken {
        /// The proxy.
        name: String,
        /// The port.
        port: u16,
        /// The proxy that has it.
        other: String,
    },
    /// No port of the range is free.
    #[error(
        "all ports from {} to {} are in use: proxy {name} needs one; raise proxy-portrange-max",
        .range.start(), .range.end()
    )]
    Exhausted {
        /// The proxy.
        name: String,
        /// The range.
        range: RangeInclusive<u16>,
    },
}
