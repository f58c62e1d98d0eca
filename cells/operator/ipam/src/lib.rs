//! CIDRs of pods for all nodes, from the cluster pool: `ipam=cluster-pool`.
//!
//! **Owns** `spec.ipam.podCIDRs` and `status.ipam.operator-status.error` of all CiliumNodes. **Needs** their table, the writer of
//! cluster objects, the [`Leadership`](operator_election::Leadership); the options `ipam`, `enable-ipv4`, `enable-ipv6` and
//! `cluster-pool-*`. **Provides** nothing.
//!
//! - *restore*: nothing is allocated before all CiliumNodes are known; CIDRs that they name are theirs, of two nodes with one CIDR
//!   the older node's.
//! - *allocate*: a node without a CIDR of an enabled family gets the next one of the first CIDR of the pool that is not used up, round
//!   robin, so that a CIDR that was freed comes back late.
//! - *refuse*: a CIDR that another node has is taken out of the node's spec, and the node gets another one; one outside of the pool
//!   stays, as pods may use it, and is an error in the node's status. An exhausted pool is an error in the status of each node that
//!   waits, and in health.
//! - *free*: a deleted CiliumNode frees its CIDRs at once; nodes that wait are served.
//!
//! Writes are decided on the object as the server has it, and only while the lease holds.
//!
//! **Differences from Cilium**: an error in one family does not keep a node from a CIDR of the other; a CIDR that a node claims in
//! addition to its own is not given to others.

#![forbid(unsafe_code)]

mod cell;
mod cidr_set;
mod cluster_pool;
mod config;
mod error;
mod write;

pub use cell::cell;
pub use config::{IpamMode, OperatorIpamConfig};
pub use error::Error;
