//! The DNS proxy as a process of its own, and the agent's service for it.
//!
//! **Owns** the gRPC service `standalonednsproxy.FQDNData`, which Cilium's standalone DNS proxy speaks as well, and the
//! client for it. **Needs**, in the agent ([`cell()`]), the tables of endpoints, redirects, selectors and the ipcache, and
//! `Arc<dyn Directory>`; in the proxy ([`program()`]) only options. **Provides** nothing.
//!
//! **Life.** With `enable-standalone-dns-proxy` the agent binds no port for queries. Once its policies are in force it
//! serves snapshots, 50 a second at most and fewer of large ones: which names each endpoint may ask for at which
//! servers, the addresses of endpoints, the identities of prefixes. The proxy listens at `tofqdns-proxy-port` after the
//! first one. It decides on queries by the last snapshot, and reports the addresses of each answer, which the agent gives
//! to policies. A query of an endpoint that has no rules yet waits for them, 500 ms at most.
//!
//! **Without the agent** the proxy goes on: it connects again and again, and keeps its snapshot. Answers of which all
//! addresses were reported before are released at once in any case; others are held until the agent has them, for
//! `tofqdns-proxy-response-max-delay` at most, and not at all while there is no agent. Reports wait for the agent,
//! 256 KiB an endpoint.
//!
//! **Other processes** on the node can connect to the port, and could give policies addresses, or rules to the proxy.
//! Both sides therefore look up the other's socket and refuse that of another user (root, as a rule). The agent takes
//! addresses only for names that rules of the endpoint allow. A process that takes the port while the agent is away
//! keeps the agent from serving, which its health reports, and from learning addresses; queries go on.
//!
//! **Differences from Cilium.** Addresses that the agent could not take while it was away are reported later. A
//! selector of all servers is identity 0, in addition to the identities that Cilium's proxy needs. Events of
//! queries, for records and metrics of the agent, do not delay answers, and are lost while the agent is away or 1,024 wait.

mod cell;
mod client;
mod connection;
mod observed;
mod owner;
mod program;
mod remote;
mod reports;
mod server;
mod service;
mod snapshot;
#[cfg(test)]
mod tests;
mod view;

pub use cell::cell;
pub use program::program;

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
    tonic::include_proto!("standalonednsproxy");
}
