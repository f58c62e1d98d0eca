//! Restores the endpoints that a previous run or another agent has left in the kernel.
//!
//! Sibling folders that it uses: `endpoints`.

pub(crate) mod endpoints;
pub(crate) mod plan;
pub(crate) mod take_over;
