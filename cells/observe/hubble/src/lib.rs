//! Flows of the node's packets, to clients of Hubble.
//!
//! **Owns** the ring of the latest events, the socket `hubble-socket-path` and the address `hubble-listen-address`.
//! **Needs** `Arc<Monitor>`; the tables by which addresses have names: `endpoints`, `ipcache`, `identities`, `frontends`,
//! `devices`, `local-node`, `endpoint-policies`, `k8s-pods`, and the DNS names of `fqdn-names`; the table `nodes`, whose
//! changes clients of the peer service follow; `Arc<SocketLb>` for the folder of cgroups.
//! **Provides** `hubble` of the status; `GET /cgroup-dump-metadata`, with Hubble off, too; `Arc<`[`Feed`]`>`, by which
//! other cells follow the ring; `Arc<`[`HubbleRegistry`]`>` for metrics with the prefix `hubble_`. Cells that must see
//! each event are members of `Group<`[`Consumer`]`>`.
//!
//! **Life.** Off by default (`enable-hubble`), and then without jobs, memory or a listener of the monitor. On, a job
//! subscribes to the monitor, so that the rings of the programs are always open; it decodes each event into a flow, a
//! notification of the agent or a debug message, with the names of one snapshot of the tables for a batch, and writes it
//! into the ring of `hubble-event-buffer-capacity` events. Requests read the ring at their own pace, by position: a
//! client that does not read costs no memory, and gets the number of events that were overwritten before it read them.
//! Socket and address serve HTTP/2 to at most 128 clients each; the socket has mode 0660, and group `cilium` if there is
//! one. Connections and requests end with the job.
//!
//! **TLS** of the address is of version 1.3, with the files of `hubble-tls-*`: it waits until all of them are valid, and
//! each handshake has their latest valid contents. With `hubble-tls-client-ca-files`, a client needs a certificate.
//!
//! Each loss is counted once, in the place where it happens: rings of the kernel (`PERF_EVENT_RING_BUFFER`), the queue of
//! this cell at the monitor (`OBSERVER_EVENTS_QUEUE`), the ring of flows (`HUBBLE_RING_BUFFER`, for each client).
//!
//! **Differences from Cilium**: the newest flow is readable at once; a follower begins with new flows; `--last N`
//! returns N flows, whatever else is in the ring; a loss is reported once per interval and at the end of a request;
//! malformed packets are flows, with the headers before the fault; a field mask never removes the time of a response.
//! Expressions of CEL are those of the crate `cel`, with limits. Requests for agent and debug events return as many
//! of these as are asked for, too. A client of the peer service that does not read gets the latest state instead of the
//! end of its request. Certificates are read when they change, not for each handshake.
//!
//! **Records of proxies** are flows, too, of type `L7`: those of DNS now. Of HTTP `hubble-redact-*` removes values of
//! headers, queries and passwords; the latency and trace of a response are those of its request, of which the latest
//! 10,000 are kept.
//!
//! **Verdicts of policies** name the rules that allow or deny the packet, by the policy that the endpoint has when the
//! event is decoded (`hubble-network-policy-correlation-enabled`, of which the table `endpoint-policies` keeps the rules).
//! Rules that decide otherwise, as the policy has changed since, are not named.
//!
//! **Translations at sockets** (`trace-sock`) are flows of type `SOCK`, from the pod in whose cgroup the process is. Its
//! folders are searched when an unknown id comes, once a second at most; `hubble-skip-unknown-cgroup-ids` skips ids of no
//! pod.

mod cell;
mod cgroups;
mod clock;
mod config;
mod feed;
mod filter;
mod kinds;
mod listen;
mod names;
mod observer;
mod parser;
mod peers;
mod policies;
mod redact;
mod request;
mod ring;
mod server;
mod service;
mod socket;
mod status;
mod tcp;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
mod workload;

pub use cell::cell;
pub use config::{Error, HubbleConfig, RedactConfig};
pub use feed::{Consumer, Feed, Follower, HubbleRegistry};
pub use filter::{BadFilter, Filters};
pub use listen::{ListenConfig, ListenError};
pub use policies::policy_of;
pub use ring::Event;
