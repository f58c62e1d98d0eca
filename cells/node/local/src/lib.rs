//! The node the agent runs on: names, addresses, pod ranges.
//!
//! **Owns** table `local-node` with its one row, and the file `state/globals/node_config.h`, which keeps the router's
//! addresses over restarts and changes of agent; `state/local-node.json`, which keeps what the cluster's objects say of
//! the node.
//! **Needs** the tables `devices` and `node-addresses`, the options of
//! [`LocalNodeConfig`] and [`StateConfig`].
//! **Provides** `Arc<Table<LocalNode>>`, the writer [`LocalNodeStore`].
//!
//! **Life.** The row exists before the start hooks of cells that need the table or the store. The node's address follows
//! the devices, but an address that still exists is not replaced by a better one. In a cluster (an
//! `Arc<`[`PodCidrSource`]`>` says so) addresses and ranges are those of the cluster's objects, which another cell writes
//! into the row; a start uses those of the previous run and waits for no server. In the first run the ranges are unknown
//! at first.
//!
//! ```
//! use std::sync::Arc;
//!
//! use hive::prelude::*;
//! use local_node::LocalNodeStore;
//!
//! fn allocate_router(store: Arc<LocalNodeStore>, lifecycle: Lifecycle) {
//!     lifecycle.hook("router").on_start(move |_| async move {
//!         store.update(|node| {
//!             let range = node.ipv4_alloc_cidr;
//!             node.router_ipv4 = node.router_ipv4.or(range.and_then(|r| r.nth(1)));
//!         });
//!         Ok(())
//!     }).add();
//! }
//!
//! let families = config::<maps::FamilyConfig>();
//! let cells = [statedb::cell(), devices::cell(), families, local_node::cell(), invoke(allocate_router)];
//! hive::validate(cells).unwrap();
//! ```
//!
//! **Automatic ranges**, as Cilium's: IPv4 `10.X.0.0/16` with X the last octet of the node's address; IPv6 `/96` of
//! `ipv6-cluster-alloc-cidr` followed by the four octets of the IPv4 range.
//!
//! **Differences from Cilium.** Without Kubernetes Cilium keeps a node address that was removed from the devices;
//! here another one replaces it.

mod cell;
mod config;
mod derive;
mod error;
mod follow;
mod host;
mod json;
mod node;
mod previous;
mod ranges;
mod restore;
mod settings;
mod state;
mod store;
#[cfg(feature = "test-util")]
pub mod testing;

pub use cell::cell;
pub use config::{IpamMode, LocalNodeConfig, NodeLabelsError};
pub use error::Error;
pub use host::NodeName;
pub use json::{JsonAddress, JsonCidr, JsonLocal, JsonNode};
pub use node::{AddressSource, AddressType, DEFAULT_CLUSTER, LocalNode, NodePool};
pub use ranges::{AutomaticRanges, LocalRouters, PodCidrSource};
pub use state::StateConfig;
pub use store::LocalNodeStore;
