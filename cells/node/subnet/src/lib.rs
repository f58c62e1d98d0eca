//! Subnets that route natively to each other, for `routing-mode=hybrid`.
//!
//! **Owns** the option `subnet-topology`, the table `subnet-identities` and the map `cilium_subnet_map`. **Needs** the
//! maps, how packets travel between nodes, and the options in cluster objects. **Provides** the table, and the command
//! `subnet/map-dump`.
//!
//! **Life.** The table has the subnets of the option before any job runs. A job follows the option in cluster objects,
//! which takes precedence, and keeps the map equal to the table, also against other writers. Programs of the previous run
//! keep their entries until then. A value in an object that is invalid is reported in health, and the last valid one
//! stays.
//!
//! A topology lists groups: `10.0.0.0/16,10.1.0.0/16;10.2.0.0/16` are two subnets that reach each other and a third that is
//! reached by the tunnel. The longest prefix decides about an address; an address in no subnet is reached by the tunnel.
//!
//! ```
//! let topology: subnet::Topology = "10.0.0.0/16, 10.1.0.0/16; fd00::/64".parse()?;
//! let groups: Vec<u32> = topology.rows().map(|row| row.identity).collect();
//! assert_eq!(groups, [1, 1, 2]);
//! # Ok::<(), subnet::Error>(())
//! ```
//!
//! **Differences from Cilium.** The map is not created again at each start, so that its entries have no gap. A malformed
//! option is refused at the start, and so is a prefix in two groups; of the latter Cilium keeps the last group.

#![forbid(unsafe_code)]

mod cell;
mod commands;
mod config;
mod error;
mod map;
mod metrics;
mod table;
mod topology;

pub use cell::cell;
pub use config::SubnetConfig;
pub use error::Error;
pub use table::SubnetIdentity;
pub use topology::Topology;
