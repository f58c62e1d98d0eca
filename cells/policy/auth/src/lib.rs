//! Mutual authentication of identities: the agent's side.
//!
//! **Owns** the entries of `cilium_auth_map`: which identity of an endpoint has authenticated with which identity on which
//! node, until when. **Needs** `Arc<Signals>`, `Arc<Maps>`, `Arc<dyn Datapath>`, the tables of nodes, identities and
//! endpoints. **Provides** the status `auth-certificate-provider`.
//!
//! **Life.** A policy with `authentication.mode` `required` lets packets pass only while the map has a live entry of the
//! pair. The programs drop others (189) and signal the pair. The agent then connects to the agent of the peer's node
//! (`mesh-auth-mutual-listener-port`): TLS 1.3, each side with the certificate of its identity,
//! `spiffe://TRUST-DOMAIN/identity/ID`, and verifies that of the other. The entry ends with the certificate that expires
//! first. A pair that fails waits for one second, then two, up to eight; packets require it again.
//!
//! **Certificates** of all identities come from SPIRE's agent by its delegated identity API
//! (`mesh-auth-spire-admin-socket`), and stay when the connection ends. A renewed one makes its pairs authenticate again
//! while their packets pass; the entries of a withdrawn one are deleted. The certificate of an identity is presented only
//! on nodes with an endpoint of that identity.
//!
//! **Garbage collection** (`mesh-auth-gc-interval`) deletes entries that have expired, that name a node or an identity
//! which is gone, or that no policy in the kernel requires. While one of these is not known, it deletes nothing for it.
//!
//! **Restart.** The map is kept: no pair authenticates again because the agent starts.
//!
//! **Bounds.** `mesh-auth-queue-size` pairs wait, 64 handshakes are in flight, 256 of other agents, each for
//! `mesh-auth-mutual-connect-timeout` at most. Sessions are not resumed.
//!
//! **Differences from Cilium.** A client waits until the server has accepted its certificate. Pauses grow with failures. A
//! renewed certificate ends them. Without `mesh-auth-enabled` the programs do not read the map, see `ebpf/programs`.

#![forbid(unsafe_code)]

mod authenticator;
mod cell;
mod certificates;
mod cluster;
mod config;
mod error;
mod mutual;
mod pending;
mod spiffe;
mod spire;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod verify;

pub use cell::cell;
pub use config::AuthConfig;

/// Code of prost and tonic.
mod proto {
    #![allow(
        missing_docs,
        unreachable_pub,
        missing_debug_implementations,
        clippy::all,
        clippy::pedantic,
        reason = "generated"
    )]
    tonic::include_proto!("spire.api.agent.delegatedidentity.v1");
}
