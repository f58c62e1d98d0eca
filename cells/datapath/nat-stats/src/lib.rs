//! Statistics of translations of sources: for which destinations most source ports of this node are in use.
//!
//! A translation needs a source port that is free for its destination (address, port, protocol). Once all of them are in
//! use, new connections to that destination are dropped, and only to that one. The table `nat-stats` names the
//! destinations that are nearest to it, the gauge `nat_endpoint_max_connection` is the share in use: alert on it.
//!
//! - **Owns** the table `nat-stats` and the gauge.
//! - **Needs** the maps of translations and the range of NodePorts, which are no source ports.
//! - **Life**: a job counts the replies' entries of each map, 5 s after the start and then at each interval, with pauses
//!   between chunks of the map. Without such a map, or with interval 0, it ends at once.
//!
//! # Differences from Cilium
//! The protocol is part of a row's key: connections by TCP and by UDP to the same address and port are two rows, of which
//! Cilium keeps the one that it writes last.

mod cell;
mod config;
mod count;
mod metrics;
mod row;

pub use cell::cell;
pub use config::NatStatsConfig;
pub use count::{Counts, count};
pub use row::NatStats;
