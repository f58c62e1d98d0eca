//! Changes policy maps from their current to the desired rows: plans the order of writes, and executes it.
//!
//! Sibling folders that it uses: `model`.

pub(crate) mod install;
pub(crate) mod plan;
