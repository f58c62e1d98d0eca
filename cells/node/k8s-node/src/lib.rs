//! The local node as the cluster's objects describe it: labels, annotations, addresses, pod ranges.
//!
//! **Owns** no table. **Needs** the tables `k8s-nodes` and `k8s-ciliumnodes`, the row of `local-node`, an API server or
//! another source of the objects. **Provides** [`PodCidrSource`](local_node::PodCidrSource), by which the node's row
//! begins without ranges of its own in a cluster; writes the row of `local-node` from then on.
//!
//! **Life.** One job follows the objects. Labels, annotations, UID, provider id and deletion are those of the Node. A start
//! waits for no server: with the facts of the previous run in the row the job only compares. What is awaited is a row
//! of health with the reason, and one line of the log.
//!
//! **Pod ranges** are, by the option `ipam`:
//!
//! | mode | source | until it is there |
//! |---|---|---|
//! | `cluster-pool` | CiliumNode `spec.ipam.podCIDRs` | waits |
//! | `kubernetes` | Node `spec.podCIDRs`, else `spec.podCIDR`, else annotations (with `annotate-k8s-node`) | waits |
//! | `multi-pool` | none: the cell `multi-pool` writes them | |
//! | others | as `kubernetes` | waits with `k8s-require-ipv4-pod-cidr` or `-ipv6-`; else 10 s, then automatic ranges |
//!
//! Options `ipv4-range` and `ipv6-range` come before all of these. Ranges change at run time: one that leaves is
//! withdrawn, so that addresses in use stay valid. If all of a family leave, the last ones stay in force.
//!
//! **The node's address** is the first `InternalIP` of the Node of each family. One that changes is taken over at run time
//! if a device has it; one that no device has is reported.
//!
//! **Differences from Cilium**, which follows neither addresses nor ranges at run time, and whose start waits for the
//! API server.

mod annotate;
mod apply;
mod cell;
mod cidrs;
mod config;
mod follow;

pub use annotate::PodCidrAnnotations;
pub use cell::cell;
pub use config::K8sNodeConfig;
