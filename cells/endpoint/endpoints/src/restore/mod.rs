//! The state folder, and what a start makes of the endpoints and deletions that it finds there.
//!
//! Sibling folders that it uses: `identity_labels`, `model`, `requests`.

pub(crate) mod damaged;
pub(crate) mod files;
pub mod plan;
pub(crate) mod queue;
pub(crate) mod start;
