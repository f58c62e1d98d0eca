//! Errors of authentications.

use std::io;
use std::time::Duration;

/// The reason why two identities have not authenticated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    #[error("policy requires the type {0}, which no agent has")]
    UnknownType(u8),
    #[error("the type test-always-fail fails always")]
    AlwaysFails,
    #[error(
        "mesh-auth-mutual-listener-port=0 disables handshakes: set it to the same free port on all nodes"
    )]
    NoPort,
    #[error("node id {0} has no node")]
    NoNode(u16),
    #[error("there is no certificate of identity {0}: see the registrations of the SPIRE server")]
    NoCertificate(u32),
    #[error("there are no authorities of the trust domain yet")]
    NoBundle,
    #[error("unable to connect")]
    Connect(#[source] io::Error),
    #[error("handshake")]
    Handshake(#[source] io::Error),
    #[error("no handshake within {0:?}")]
    Timeout(Duration),
    #[error("certificate of the peer")]
    Peer(#[from] InvalidPeer),
    #[error("unable to write cilium_auth_map")]
    Map(#[from] bpf::Error),
}

/// The fault of a peer's certificate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum InvalidPeer {
    #[error("is missing")]
    Missing,
    #[error("is not valid")]
    Certificate(#[from] webpki::Error),
    #[error("has {0} URIs, not one")]
    Uris(usize),
    #[error("is of {0}, no identity of this trust domain")]
    Foreign(String),
    #[error("is of identity {found}, not {expected}")]
    Identity { found: u32, expected: u32 },
}
