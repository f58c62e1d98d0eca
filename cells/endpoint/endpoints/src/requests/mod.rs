//! Applies requests of clients and changes of cluster objects to the table, and waits until they are reconciled.
//!
//! Sibling folders that it uses: `model`.

pub(crate) mod change;
mod creation;
pub(crate) mod description;
pub(crate) mod fence;
pub(crate) mod pods;
pub(crate) mod service;
