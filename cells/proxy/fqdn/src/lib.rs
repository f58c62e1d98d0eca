//! DNS names to identities: the addresses that workloads look up, in policy maps and ipcache.
//!
//! **Owns** the names of all endpoints with their records (`fqdn/`), the identities with labels of the source `fqdn`, and
//! the claims of names on the ipcache. **Needs** the tables of endpoints, redirects, selectors and identities, the node's
//! row, `Arc<Prefixes>`, `Arc<IpcacheWriter>`, `Arc<Metrics>`, the maps of connections. **Provides** `Arc<dyn Directory>` to the DNS proxy,
//! `Arc<`[`DnsNames`]`>` and the operations under `/fqdn`.
//!
//! **Life.** The proxy reports the addresses of each answer. An address whose names are selected by policies gets the
//! labels of these selectors, of its world, and of the longest prefix of a policy that covers it. A job allocates the
//! identity, waits until policy maps have rows for it, writes the ipcache, and only then the answer is released; an
//! answer without new addresses is released at once, any other after `tofqdns-proxy-response-max-delay` at the latest.
//! With `tofqdns-preallocate-identities` the identities of a selector are allocated with it, so that an answer only has
//! to wait for the ipcache. Selectors of new policies select the names that are known.
//!
//! Once a minute names that have expired are collected; an address with open connections stays, as do the other
//! addresses of its names. At start the names of the previous run are read, and their addresses keep their identities,
//! which the allocator reads from its file: connections go on. DNS rules of the previous run apply until policies are
//! in force.
//!
//! **Differences from Cilium.** Names are in records of their own, not in those of endpoints; connections are counted for
//! an address, whichever endpoint has them. Release of answers does not wait for other proxies.

mod book;
mod cell;
mod config;
mod directory;
mod job;
mod lookups;
mod metrics;
mod record;
mod rest;

pub use cell::cell;
pub use config::FqdnConfig;
pub use directory::{dns_rules, selects_every_server};
pub use lookups::DnsNames;
