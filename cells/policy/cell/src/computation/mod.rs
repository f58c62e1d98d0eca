//! What policy is wanted: checked objects and the last good ones on disk, the engine, the rows of each endpoint and the
//! writes that bring them into its map. No clock and no task.
//!
//! Sibling folders that it uses: `model`, `policymap`.

pub(crate) mod core;
pub(crate) mod keep;
pub(crate) mod repository;
