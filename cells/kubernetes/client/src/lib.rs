//! Cluster objects from an API server, and requests to it.
//!
//! **Owns** the connection: addresses and credentials from a kubeconfig or a pod's service account, reloaded
//! when they change; failover between servers; the rate limit of requests; a heartbeat on idle connections.
//! **Needs** the options `k8s-*`, `enable-k8s`, `crd-wait-timeout`. **Provides** a member of the group `Arc<dyn`
//! [`Source`](k8s_types::Source)`>` by the name `daemon-k8s`, and, if a server is configured, `Arc<dyn`
//! [`Api`](k8s_types::Api)`>`.
//!
//! A watch requests a streaming list, which is one request for all objects and their changes; if a server does not
//! support that, it requests pages and a watch. It resumes from its last version, and lists again when that is too old,
//! when it was interrupted for more than five minutes, and every six to twelve hours, which repairs missed changes;
//! immediately when versions go back, after invalid data, and when another cluster responds. Objects are passed to the
//! reader as received, one at a time: a slow reader applies backpressure only to its own connection.
//!
//! An API server sleeps 2 s in the creation of an object whose kind was established less than 2 s before. A creation waits for
//! the end of that time, by the times in the definition's metadata, where it is over sooner than the sleep would be.
//!
//! **Differences from Cilium**: JSON for all kinds, HTTP/1.1 with a connection for each watch, no proxies. Definitions
//! of kinds are followed while the agent runs, so that a kind that is defined later needs no restart.

mod access;
mod cell;
mod config;
mod connect;
mod definitions;
mod error;
mod follow;
mod jobs;
mod limiter;
mod link;
mod metrics;
mod probe;
mod profile;
mod request_error;
mod requests;
pub mod scan;
mod source;
mod status;
mod target;
#[cfg(test)]
mod tests;
mod version;
mod watch_timeouts;

pub use cell::cell;
pub use config::ApiServerConfig;
pub use definitions::required as required_kinds;
pub use error::Error;
pub use probe::ServerProbe;
pub use profile::{ClientProfile, Fence};

/// Whether the n-th failure in a row is reported: the 1st, 10th, 100th, ...
fn is_reported(count: u64) -> bool {
    count > 0 && 10_u64.pow(count.ilog10()) == count
}
