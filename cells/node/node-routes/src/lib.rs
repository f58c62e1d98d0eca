//! Routes to the pods of this node and of other nodes.
//!
//! **Owns** the desired routes of the owners `local-node` and `node/<cluster>/<name>`, and all routes by `cilium_host`.
//! **Needs** the tables `nodes`, `subnet-identities`, `local-node`, `devices` and `routes`; [`Routes`](routes::Routes); how packets travel
//! between nodes ([`Tunnel`](tunnel::Tunnel)).
//! **Provides** nothing.
//!
//! **Life.** A job follows the tables: a change of one node changes its own routes and no others; a change of the router's
//! address, of the MTU or of the host's own routes leads to a comparison of all. Routes of the previous run stay until all
//! nodes are known and the router has its addresses; then those that are not desired are deleted.
//!
//! | mode | to pods of | route |
//! |---|---|---|
//! | all | - | `ROUTER dev cilium_host scope link` |
//! | all, unless `enable-local-node-route` is off | this node | `CIDR via ROUTER dev cilium_host src ROUTER`; IPv6: `CIDR dev cilium_host src ROUTER` |
//! | tunnel | other nodes | the same with `mtu`: that of the devices without the tunnel's headers |
//! | native | other nodes | none: the network has them, or BGP |
//! | native with `auto-direct-node-routes` | other nodes | `CIDR via NODE dev X`, with X from the kernel's route to the node |
//! | hybrid | other nodes, pods of the same group of subnets | as native |
//! | hybrid | other nodes, other pods | as tunnel |
//!
//! A node behind a gateway, which does not know the pods, gets no route: an error in health, or nothing with
//! `direct-routing-skip-unreachable`. With hybrid routing an error leaves its pods to the tunnel. A range within this node's own is never routed to another node.
//!
//! ```
//! use hive::prelude::*;
//!
//! # let node = statedb::table::<local_node::LocalNode>();
//! # let nodes = node_manager::testing::given(Vec::new());
//! hive::validate([
//!     statedb::cell(),
//!     devices::cell(),
//!     routes::cell(),
//!     tunnel::cell(),
//!     statedb::table::<subnet::SubnetIdentity>(),
//!     config::<local_node::StateConfig>(),
//!     config::<maps::FamilyConfig>(),
//!     # node,
//!     # nodes,
//!     node_routes::cell(),
//! ])
//! .unwrap();
//! ```
//!
//! **Differences from Cilium.** With hybrid routing Cilium routes all ranges by the tunnel's device, and ignores
//! `auto-direct-node-routes`. A lookup is repeated when the host's routes change, instead of every minute or later. The
//! routes are rows of table `desired-routes`, so that a route that another process deletes returns at once.

mod cell;
mod config;
mod error;
mod plan;
mod run;

pub use cell::cell;
pub use config::NodeRoutesConfig;
pub use error::Error;
