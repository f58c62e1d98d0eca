//! Requests of the datapath to the agent: maps that are full, identities that have to authenticate.
//!
//! **Owns** the readers of the perf event array `cilium_signals`: each ring has one. **Needs** `Arc<Maps>`. **Provides**
//! [`Signals`] to the cells that serve the requests.
//!
//! **Life.** A job opens a ring of each CPU and reads them when they have something, at most ten times a second. Signals
//! are lost if the ring is full: the datapath sends another with the next packet that it drops.

#![forbid(unsafe_code)]

mod cell;
mod handle;
mod reader;

pub use cell::cell;
pub use handle::{Families, Signals};
