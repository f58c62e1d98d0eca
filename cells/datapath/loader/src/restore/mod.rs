//! Restores the kernel state of a previous run or of another agent: repairs it, and prunes what has no owner.
//!
//! Sibling folders that it uses: `endpoints`.

pub(crate) mod adopt;
pub(crate) mod inherit;
pub(crate) mod plan;
pub(crate) mod sweep;
