//! Flows of the node's packets, to clients of Hubble.
//!
//! **Owns** the ring of the latest events and the socket `hubble-socket-path`. **Needs** `Arc<Monitor>` and the tables
//! by which addresses have names: `endpoints`, `ipcache`, `identities`, `frontends`, `devices`, `local-node`.
//! **Provides** `hubble` of the status.
//!
//! **Life.** Off by default (`enable-hubble`), and then without jobs, memory or a listener of the monitor. On, a job
//! subscribes to the monitor, so that the rings of the programs are always open; it decodes each event into a flow, a
//! notification of the agent or a debug message, with the names of one snapshot of the tables for a batch, and writes it
//! into the ring of `hubble-event-buffer-capacity` events. Requests read the ring at their own pace, by position: a
//! client that does not read costs no memory, and gets the number of events that were overwritten before it read them.
//! The socket serves HTTP/2 to at most 64 clients, mode 0660, group `cilium` if there is one; connections and requests end with the job.
//!
//! Each loss is counted once, in the place where it happens: rings of the kernel (`PERF_EVENT_RING_BUFFER`), the queue of
//! this cell at the monitor (`OBSERVER_EVENTS_QUEUE`), the ring of flows (`HUBBLE_RING_BUFFER`, for each client).
//!
//! **Differences from Cilium**: the newest flow is readable at once; a follower begins with new flows; `--last N`
//! returns N flows, whatever else is in the ring; a loss is reported once per interval and at the end of a request;
//! malformed packets are flows, with the headers before the fault; a field mask never removes the time of a response.
//! A filter by information that no flow of this agent has is an error. Requests for agent and debug events return as many
//! of these as are asked for, too.
//!
//! **Not here**: workloads, DNS names, policies that have decided (`hubble-network-policy-correlation-enabled`), flows
//! of sockets and of proxies, TCP and TLS, the peer service, exporters, metrics.

mod cell;
mod clock;
mod config;
mod filter;
mod names;
mod observer;
mod parser;
mod request;
mod ring;
mod server;
mod service;
mod status;

pub use cell::cell;
pub use config::{Error, HubbleConfig};
