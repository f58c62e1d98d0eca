//! CIDRs of pods for all nodes: from the cluster pool (`ipam=cluster-pool`) or from several pools (`ipam=multi-pool`).
//!
//! **Owns** `spec.ipam.podCIDRs`, `spec.ipam.pools.allocated` and `status.ipam.operator-status.error` of all CiliumNodes. **Needs** their table, the writer of
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
//! With `ipam=multi-pool` pools are CiliumPodIPPools, which may be created at the start (`auto-create-cilium-pod-ip-pools`):
//!
//! - *restore*: as above; no two ranges of nodes overlap, of whatever pools they are.
//! - *allocate*: a node that requests more addresses than its ranges of a pool have gets the next free ones of the pool. If there
//!   are none, it keeps what it has, and its status and health name the pool.
//! - *free*: a range that the node has taken out of its object is free; nodes that wait are served.
//! - *refuse*: a range of a node that overlaps one of another node is taken out of its spec and named in its status. A range whose
//!   pool is gone or has shrunk stays with its node and is named in health.
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
mod multi_pool;
mod multi_pool_job;
mod pod_pools;
mod write;

pub use cell::cell;
pub use config::{IpamMode, OperatorIpamConfig};
pub use error::Error;
