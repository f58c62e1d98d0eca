//! Endpoints in the kernel: their rows, pins, filters and policy maps; the implementation of `Datapath`.
//!
//! Sibling folders that it uses: `programs`.

pub(crate) mod conntrack_purge;
pub(crate) mod detached_interfaces;
pub(crate) mod kernel;
pub(crate) mod policy;
pub(crate) mod pool;
pub(crate) mod rows;
pub(crate) mod slots;
