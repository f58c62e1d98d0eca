//! Rows of the load balancer maps, the pinned maps that hold them, Maglev tables, and how full they are.
//!
//! Sibling folders that it uses: `model`.

pub mod dump;
pub(crate) mod kernel;
pub(crate) mod levels;
pub mod maglev;
pub(crate) mod maglev_map;
pub(crate) mod provider;
pub mod rows;
