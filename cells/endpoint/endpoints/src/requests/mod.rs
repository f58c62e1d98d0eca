//! What clients and cluster objects ask for, as changes of rows; waits for the outcome.
//!
//! Sibling folders that it uses: `identity_labels`, `model`.

pub(crate) mod change;
pub(crate) mod fence;
pub(crate) mod pods;
pub(crate) mod service;
