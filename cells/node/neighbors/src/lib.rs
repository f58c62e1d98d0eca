//! Neighbour entries of the next hops to other nodes, kept resolved: a packet that a program redirects finds the hardware
//! address of its next hop at once.
//!
//! **Owns** the tables `forwardable-ip` and `desired-neighbors`, and the kernel's neighbour entries of the flag
//! `NTF_EXT_LEARNED` on selected devices.
//! **Needs** the tables `devices`, `routes` and `neighbors`; the nodes of the cluster for [`cell()`].
//! **Provides** the [`ForwardableIps`] handle; metrics `neighbor_*`, which are off by default.
//!
//! **Life.** Owners insert addresses to which packets may be forwarded. A job asks the kernel's routes for the next hop to each
//! of them, on each selected device with a hardware address; again when these devices or their routes change. The next hops
//! are the rows of `desired-neighbors`, which a reconciler writes to the kernel. With `NTF_EXT_MANAGED` (Linux 5.16) the kernel
//! keeps an entry resolved by itself; for older kernels the agent uses an entry again when it becomes stale. An entry that
//! another process has removed is written again. Nothing is polled.
//!
//! Entries of the previous run stay until all owners have named their addresses; then those without a row are deleted.
//! Permanent entries, which administrators make, are never changed.
//!
//! ```
//! use neighbors::{ForwardableIps, Owner};
//!
//! fn forward(ips: &ForwardableIps) {
//!     let initializer = ips.register_initializer("gateways");
//!     ips.insert([192, 0, 2, 1].into(), &Owner::service("gateway"));
//!     ips.finish(initializer);
//! }
//! ```
//!
//! **Differences from Cilium.** Lookups follow changes within a fraction of a second instead of 15 s, and are repeated only
//! for addresses that are new unless routes have changed. Entries of the flag `NTF_EXT_LEARNED` on devices that are not
//! selected belong to others, such as a routing daemon, unless the kernel manages them. Backends of services are not among
//! the addresses yet. The rows of a node go with the node.

#![forbid(unsafe_code)]

mod calculate;
mod cell;
mod config;
mod desired;
mod error;
mod forwardable;
mod kernel;
mod metrics;
mod next_hops;
mod nodes;
mod ops;
mod refresh;

pub use cell::{cell, control_plane};
pub use config::{NeighborConfig, Upkeep, kernel_can_manage};
pub use desired::DesiredNeighbor;
pub use error::Error;
pub use forwardable::{ForwardableIp, ForwardableIps, Owner, OwnerKind};
