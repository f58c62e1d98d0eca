//! The job that makes a round for each change, the state that it shares with the API, and its metrics.
//!
//! Sibling folders that it uses: `computation`, `model`.

pub(crate) mod job;
pub(crate) mod metrics;
pub(crate) mod state;
