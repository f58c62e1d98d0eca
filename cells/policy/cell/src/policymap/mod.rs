//! From the rows that a policy map has to those that it shall have: the order of writes, and the writes.
//!
//! Sibling folders that it uses: `model`.

pub(crate) mod install;
pub(crate) mod plan;
