//! The nodes of the cluster, this one included.
//!
//! **Owns** the table `nodes`.
//! **Needs** the node's row and the table of CiliumNodes.
//! **Provides** `Arc<Table<Node>>`.
//!
//! **Life.** The table is complete when the local node is known and the CiliumNodes are listed. The CiliumNode of this node is
//! not read: the local node is the source of its own row. One change of an object writes one row.
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

#![forbid(unsafe_code)]

mod cell;
mod follow;
mod node;
mod object;
mod source;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;

pub use cell::cell;
pub use node::{Family, Node, NodeAddress};
pub use source::NodeSource;
