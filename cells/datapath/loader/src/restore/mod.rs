//! Restores the kernel state of a previous run or of another agent, and repairs it.
//!
//! Sibling folders that it uses: `endpoints`.

pub(crate) mod endpoints;
pub(crate) mod plan;
pub(crate) mod take_over;
