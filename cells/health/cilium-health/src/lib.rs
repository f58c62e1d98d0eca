//! Connectivity between nodes: a responder, a prober of all nodes, and the health API on `health.sock`.
//!
//! **Owns** table [`node-health`](NodeHealth), the responder on `cluster-health-port` (4240) of the node's addresses,
//! the health endpoint, and `health.sock` in the run folder. **Needs** the tables `nodes` and `local-node`, the agent's
//! status ([`Collector`](status::Collector)), `CAP_NET_RAW` for pings (without it nodes are probed by HTTP only); for the
//! health endpoint a namespace ([`EndpointNamespaceSlot`]), endpoints, addresses and links.
//! **Provides** `Arc<Table<NodeHealth>>` and `cluster.ciliumHealth` in `GET /healthz`.
//!
//! **Life.** Enabled by `enable-health-checking`; does its work in jobs, so it never delays the start:
//! - `responder` listens on the node's own address of each enabled family, on all addresses as long as one is unknown,
//!   and follows changes of them. It answers `GET /hello` with 200 and all else with 404, within bounds of
//!   connections and time. A port that another program has is retried and named in health.
//! - `prober` starts when the responder has tried to listen, and follows the table `nodes`. Each address - the nodes'
//!   own, and with `enable-endpoint-health-checking` those of their health endpoints, this node's included - is probed
//!   once a cycle of (10 s + `connectivity-probe-frequency-ratio` * 100 s) * ln(1 + addresses), evenly spaced, in large
//!   clusters in batches half a second apart: by `GET
//!   /hello`, and by up to `health-check-icmp-failure-threshold` pings 100 ms apart. At most 256 addresses are probed
//!   at a time. Without nodes it waits for nothing but the table.
//! - `cilium-health-ep` allocates addresses, those of the previous run if they are free, connects the namespace by the link
//!   `lxc_health`, creates an endpoint with the identity `reserved:health`, and publishes its addresses once it is ready.
//!   It makes all of it again when the link, the endpoint, the router's address or the MTU is another. `responder-endpoint`
//!   answers in the namespace. Switched off, it removes what a previous agent has left.
//! - `health-api` serves `GET /v1beta/healthz`, `GET /v1beta/status` and `PUT /v1beta/status/probe`.
//!
//! **A node that cannot be reached** is named in health (`cilium-health.nodes`) with path, check and likely cause; it
//! does not degrade this agent. Only its own responder does, if it cannot listen.
//!
//! ```
//! use cilium_health::{NodeHealth, Reachability, primary};
//! use statedb::Table;
//!
//! /// Counts the nodes with an own address that does not answer.
//! fn unreachable(table: &Table<NodeHealth>) -> usize {
//!     let snapshot = table.snapshot();
//!     table.all(&snapshot).filter(|row| primary(&row.host) == Some(Reachability::Unreachable)).count()
//! }
//! ```
//!
//! **Differences from Cilium.** A result is reported as soon as it is there, not when the cycle ends. A new node is
//! probed in the cycle in which it comes. `PUT /v1beta/status/probe` probes all nodes and waits for the results, a
//! minute at most; Cilium returns the last ones. The health endpoint needs no process of its own: its sockets are opened in
//! the namespace before the agent drops `CAP_SYS_ADMIN`, and stay there. It ends with the agent, not before, and its link
//! is made again when it is deleted, not when it does not answer for five minutes.

mod cell;
mod config;
mod endpoint;
mod error;
mod health_api;
mod metrics;
mod prober;
mod report;
mod responder;
mod row;

pub use cell::cell;
pub use config::CiliumHealthConfig;
pub use endpoint::{EndpointNamespace, EndpointNamespaceSlot};
pub use error::Error;
pub use row::{CheckResult, Failure, NodeHealth, Path, Reachability, primary};
