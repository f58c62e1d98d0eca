//! Forwards DNS queries of workloads that policy allows, and reports the addresses of their answers.
//!
//! **Owns** the sockets to which policy redirects queries, and those to the servers. **Needs** `Arc<`[`dyn Directory`]`>`
//! (endpoints, rules, the cache of names), `Arc<Proxies>` for its port, the families, `Arc<Metrics>`, `Arc<Monitor>`.
//! **Provides** `Arc<`[`Observer`]`>`, which publishes and counts the queries of a standalone proxy as those of this one.
//!
//! **Life.** A job binds the port of the previous run, or another one, on the loopback addresses; rules of iptables lead
//! packets for any address to it. For each query it asks the directory for the endpoint and whether policy allows the name at
//! the server; else the answer is REFUSED or NXDOMAIN. An allowed query is forwarded as it is, with the mark of the endpoint's
//! identity, and in transparent mode with its address. An answer is accepted only if its id, its question and the server
//! are those of the query; only addresses of the name and of its aliases count. They are handed to the directory, and the
//! answer is released, byte for byte, when the directory has finished.
//!
//! **Stop.** With `dns-policy-unload-on-shutdown` queries pass without the proxy before it stops, where rules allow every name
//! (`matchPattern: "*"`): policy makes rows without its port, and the next agent those with it. Addresses of these answers are
//! not learned. A standalone proxy answers while the agent is away, by all rules: the option is not needed there, and lets
//! such queries pass all the same, as in Cilium.
//!
//! Answers that are larger than the client takes over UDP are compressed or truncated. Queries over TCP are pipelined:
//! each is answered when its answer is there. A workload has at most 2,048 queries of
//! 4 MiB together in flight, and 128 connections; all workloads together have about 8,192 sockets to servers over UDP.
//! Without transparent mode a socket has a random port and, for a second, one query after another of one client to one
//! server, unless a query has had no answer; 1,024 sockets wait for their next query.
//!
//! **Records.** While the monitor has a subscription, each query that policy decides on, each answer and each failure is a
//! record (type 129): addresses, endpoints, identities and labels of both ends, name, types, and of answers code, addresses,
//! aliases, time to live. Names have other characters than those of host names escaped.
//!
//! ```
//! use std::net::{IpAddr, SocketAddr};
//!
//! use dns_proxy::{Client, Directory, Question, Server};
//! use fqdn::Lookup;
//! use futures::future::{BoxFuture, FutureExt};
//! use labels::Label;
//!
//! /// One endpoint, which may ask for anything.
//! struct Open;
//!
//! impl Directory for Open {
//!     fn client(&self, _source: IpAddr) -> Option<Client> {
//!         Some(Client { endpoint: 7, identity: 1000, is_host: false })
//!     }
//!     fn allows(&self, question: Question<'_>) -> bool {
//!         question.name.ends_with(".example.")
//!     }
//!     fn may_see_client(&self, _server: IpAddr) -> bool {
//!         false
//!     }
//!     fn server(&self, _address: IpAddr) -> Server {
//!         Server { endpoint: 0, identity: 2 }
//!     }
//!     fn labels(&self, _identity: u32) -> Vec<Label> {
//!         Vec::new()
//!     }
//!     fn node(&self) -> [Option<IpAddr>; 2] {
//!         [None, None]
//!     }
//!     fn learn(&self, _endpoint: u16, _lookup: Lookup) -> BoxFuture<'static, ()> {
//!         async {}.boxed()
//!     }
//! }
//! ```
//!
//! **Differences from Cilium.** Answers are verified before anything is learned from them, and pass byte for byte, so that
//! records of any type do. A server that does not answer leads to SERVFAIL after 10 s, which metrics count and a record
//! reports, as it does a query beyond the limits. Requests may have any size. A record has at most 64 addresses.

mod cell;
mod config;
mod directory;
mod message;
mod metrics;
mod observation;
mod proxy;
mod records;
mod server;
mod shares;
mod sockets;
mod standalone;
pub mod testing;
mod upstream;
mod waiting;

pub use cell::cell;
pub use config::{DnsProxyConfig, RejectCode};
pub use directory::{Client, Directory, Question, Server, Transport};
pub use metrics::Timings;
pub use observation::{Details, Event, Observation, Observer};
pub use standalone::serve_standalone;
