//! The nodes of the cluster, this one included.
//!
//! **Owns** the table `nodes`, the claims `node//NAME` in the ipcache, the map `cilium_node_map_v2` with the nodes' ids, the
//! file `state/nodes.json`.
//! **Needs** the node's row, the tables of CiliumNodes and EndpointSlices, the ipcache, the options of the tunnel; `Arc<Maps>` if there are any.
//! **Provides** `Arc<Table<Node>>`, `GET /cluster/nodes`, `GET /node/ids`, the metrics `nodes_all_*`.
//!
//! **Life.** The nodes of the previous run are in the table as `restored` until the CiliumNodes are listed; then the table is
//! complete, and those without an object are deleted. The CiliumNode of this node is not read: the local node is the source of
//! its own row. One change of an object writes one row and the claims that differ.
//!
//! **Conflicts.** An address belongs to one node, and pod ranges of two nodes do not overlap. What another node has is left out
//! of the row of a node that claims it as well, and is reported in the row `conflicts` of health; it gets it when the other one
//! gives it up. The local node has its addresses in any case. Which node was first survives restarts by the file.
//!
//! **Claims.** Addresses of other nodes are the identity `remote-node`, those of their health endpoints `health`, of their
//! ingress `ingress`. Their pod ranges are the world with the node's tunnel endpoint, for pods that are not known yet, and leave
//! the identity to a policy that names the same range.
//!
//! **API server.** The endpoints of the service `default/kubernetes` are selected by the entity `kube-apiserver`: an address of
//! another node has an identity with that label beside `remote-node`, this node's host has it beside its own, and an address of
//! no node has one of its own, with the labels of the address and the world. Objects of nodes are read once these endpoints are
//! listed.
//!
//! ```
//! use node_manager::{Family, Node};
//! use statedb::Table;
//!
//! /// Returns the tunnel endpoints of all other nodes.
//! fn peers(nodes: &Table<Node>) -> Vec<std::net::IpAddr> {
//!     let snapshot = nodes.snapshot();
//!     let remote = nodes.all(&snapshot).filter(|node| !node.is_local());
//!     remote.filter_map(|node| node.tunnel_endpoint(Family::Ipv4)).collect()
//! }
//! ```
//!
//! **Differences from Cilium.** Conflicts are resolved and reported; in Cilium the last node gets the address. Invalid parts of an
//! object are reported. A client of `GET /cluster/nodes` keeps no state in the agent. Encryption keys are in the rows, but not in
//! the ipcache.

#![forbid(unsafe_code)]

mod api_servers;
mod cell;
mod checkpoint;
mod claims;
mod cluster_nodes;
mod follow;
mod label_identities;
mod mappings;
mod metrics;
mod model;
mod node;
mod node_ids;
mod node_map;
mod object;
mod source;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;

pub use cell::cell;
pub use node::{Node, NodeAddress};
pub use source::NodeSource;
pub use tunnel::Family;
