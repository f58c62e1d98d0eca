//! Sources of services: cluster objects and the state file, converted and passed to the writer.
//!
//! Sibling folders that it uses: `model`, `writer`.

pub(crate) mod convert;
pub(crate) mod objects;
pub(crate) mod state_file;
pub(crate) mod state_file_job;
