//! An endpoint as a row of the table and as a record on disk: values without tables, files or a kernel.
//!
//! Sibling folders that it uses: none.

pub(crate) mod endpoint;
pub mod error;
pub(crate) mod id;
pub(crate) mod log;
pub(crate) mod mac;
pub(crate) mod op_labels;
pub(crate) mod options;
pub(crate) mod record;
pub(crate) mod regeneration;
pub(crate) mod state;
