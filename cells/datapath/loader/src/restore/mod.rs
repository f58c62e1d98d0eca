//! What a start finds of an earlier run or of another agent: taken over, repaired or removed.
//!
//! Sibling folders that it uses: `endpoints`.

pub(crate) mod adopt;
pub(crate) mod inherit;
pub(crate) mod plan;
pub(crate) mod sweep;
