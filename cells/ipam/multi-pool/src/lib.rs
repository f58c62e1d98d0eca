//! Pod ranges of several pools, requested from the operator and given back: `ipam=multi-pool`.
//!
//! **Owns** `spec.ipam.pools` of the node's CiliumNode, the pools in the row of `local-node`, and the requests that wait for a
//! range. **Needs** the tables `k8s-ciliumnodes`, `k8s-pods`, `k8s-namespaces` and `ipam`, the writer of cluster objects.
//! **Provides** the table `podippools` and a [`Chooser`](ipam::Chooser). Without the mode or without an API server it does
//! nothing.
//!
//! - *choose*: the pool of a pod is that of its annotation `ipam.cilium.io/ipv4-pool` or `-ipv6-`, of `ip-pool`, the same of its
//!   namespace, the one CiliumPodIPPool that selects it, the default pool. The node's own addresses are of the default pool.
//! - *request*: a job compares what the CiliumNode requests with what is in use and waited for, and writes the difference, at
//!   most every `ipam-cilium-node-update-rate`.
//! - *give back*: a range without addresses, from the last one, leaves the object while the others cover the demand. It gives
//!   no address from the decision on. One that is needed again is taken back, if no write without it was sent.
//! - *withdrawn*: addresses of a range that has left the CiliumNode stay with their owners, and none is allocated from it. It
//!   is written again once, as the cluster may have been restored from an older state, unless another node has it.
//! - *start*: pools and addresses of the previous run are in the node's row; nothing waits for the API server.
//!
//! **Differences from Cilium.** A request that cannot be served is counted until it is served, or five minutes, also when the
//! ranges of its pool are exhausted. A range that was written again gives no new address until the next start.

mod cell;
mod choice;
mod chooser;
mod config;
mod error;
mod follow;
mod pools;
mod waiting;

pub use cell::cell;
pub use config::MultiPoolConfig;
pub use error::Error;
