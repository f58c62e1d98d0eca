//! Addresses that the CiliumNode of this node lists, and their release: `ipam=crd`, `azure`, `alibabacloud`.
//!
//! **Owns** `status.ipam.used` of the node's CiliumNode, and the agent's side of the handshake in `status.ipam.release-ips`; the
//! same for IPv6 in `ipv6-used` and `release-ipv6s`. **Needs** the tables `k8s-ciliumnodes` and `ipam`, the writer of cluster
//! objects. **Provides** a [`PoolSource`](ipam::PoolSource), without which in another mode it does nothing.
//!
//! - *wait*: no address is allocated until the object lists `min-allocate` addresses, else `pre-allocate`, else one for each of
//!   the router and the health endpoint; and until it has a static address, if `static-ip-tags` ask for one. Health names what is
//!   awaited. The start itself waits for nothing.
//! - *allocate*: an entry whose owner is the pod (`crd` only), else one without an owner that is not being released.
//! - *status*: the addresses in use, at most every `ipam-cilium-node-update-rate`. Those of the previous run are among them from
//!   the first write on.
//! - *release*: an address that the operator has marked is not allocated any more. The answer is `do-not-release` if it is in use or
//!   not listed; `ready-for-release` once it is free and its quarantine is over. One that is `released` and not listed is removed.
//! - *lost*: an address in use that the object does not list any more stays with its owner; health names it.
//!
//! **Differences from Cilium.** An address that another owner has is not allocated to the owner that the object names. An address
//! in use that is `ready-for-release`, as after a restart, is answered again: `do-not-release`.

mod cell;
mod follow;
mod node_pool;
mod status;

pub use cell::cell;
