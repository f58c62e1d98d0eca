//! The desired policy: validated objects and their last valid versions on disk, the engine, the rows of each endpoint
//! and the writes to its map. No clock and no task.
//!
//! Sibling folders that it uses: `model`, `policymap`.

pub(crate) mod computed;
pub(crate) mod core;
pub(crate) mod keep;
pub(crate) mod log_cookies;
pub(crate) mod redirects;
pub(crate) mod repository;
