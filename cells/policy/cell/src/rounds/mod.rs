//! The job that runs a round for each change: its inputs, the phases of a round, its outputs, the state that it shares
//! with the API, and its metrics.
//!
//! Sibling folders that it uses: `computation`, `model`.

mod features;
pub(crate) mod inputs;
pub(crate) mod job;
pub(crate) mod metrics;
pub(crate) mod outputs;
mod phases;
pub(crate) mod prefixes;
mod report;
pub(crate) mod services;
pub(crate) mod state;
