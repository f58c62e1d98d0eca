//! Sets of the kernel (`ipset`) with the addresses of all nodes, to which packets of pods go as they are.
//!
//! Sibling folders that it uses: none.

pub(crate) mod entry;
pub mod kernel;
pub(crate) mod nodes;
pub(crate) mod reconcile;

pub use entry::SetEntry;

use crate::rules::Family;

/// The set of IPv4 addresses, and that of IPv6.
pub const NODE_SETS: [&str; 2] = ["cilium_node_set_v4", "cilium_node_set_v6"];

/// Returns the name of a family's set.
#[must_use]
pub fn node_set(family: Family) -> &'static str {
    match family {
        Family::V4 => NODE_SETS[0],
        Family::V6 => NODE_SETS[1],
    }
}
