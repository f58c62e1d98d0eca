//! Entries of the load balancer maps, the pinned maps, Maglev tables, and fill levels.
//!
//! Sibling folders that it uses: `model`.

pub mod dump;
pub(crate) mod kernel;
pub(crate) mod levels;
pub mod maglev;
pub(crate) mod maglev_map;
pub(crate) mod provider;
pub mod rows;
