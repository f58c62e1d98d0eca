//! Errors.

use std::io;

/// Options by which API or metrics cannot be served.
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
    /// TLS of metrics without a certificate or a key.
    #[error("{option}: is empty: operator-prometheus-enable-tls needs certificate and key")]
    NoFile {
        /// The option of the file.
        option: &'static str,
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
