//! Errors of neighbour entries.

use std::io;
use std::net::IpAddr;

/// A neighbour entry that is not in the kernel, or a lookup that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The netlink socket could not be opened.
    #[error("netlink socket: {0}")]
    Socket(#[source] io::Error),
    /// The kernel refused the request, or its response was lost.
    #[error("neighbour {ip} of link {link_index}: {source}")]
    Entry {
        /// The neighbour's address.
        ip: IpAddr,
        /// The link.
        link_index: u32,
        /// The cause.
        #[source]
        source: netlink::Error,
    },
    /// The kernel's entries could not be listed.
    #[error("list neighbours: {0}")]
    List(#[source] netlink::Error),
    /// The next hop to an address could not be looked up.
    #[error("next hop to {ip} by link {link_index}: {source}")]
    Lookup {
        /// The address.
        ip: IpAddr,
        /// The link.
        link_index: u32,
        /// The cause.
        #[source]
        source: netlink::Error,
    },
}
