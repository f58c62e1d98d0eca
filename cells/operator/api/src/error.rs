//! Errors.

use std::io;

/// Why the API is not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be read.
    #[error(
        "operator-api-serve-addr: {value:?} is wrong: give an address with a port, as 127.0.0.1:9234 or localhost:9234"
    )]
    Address {
        /// The option's value.
        value: String,
    },
    /// The address cannot be listened on.
    #[error("operator-api-serve-addr: cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}
