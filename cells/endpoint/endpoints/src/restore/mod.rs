//! The state folder, and how a start restores the endpoints and deletions that it finds there.
//!
//! Sibling folders that it uses: `model`, `requests`.

pub(crate) mod damaged;
pub(crate) mod files;
pub(crate) mod finish;
pub(crate) mod host;
pub(crate) mod ingress;
pub mod plan;
pub(crate) mod queue;
mod retry;
pub(crate) mod start;
mod unfinished;
