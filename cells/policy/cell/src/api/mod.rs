//! Policy in the REST API and in the shell, and the operation that explains a verdict.
//!
//! Sibling folders that it uses: `computation`, `model`, `rounds`.

pub(crate) mod l4;
pub(crate) mod map_state;
pub mod preview;
pub(crate) mod proxy;
pub(crate) mod repository;
pub(crate) mod rest;
pub(crate) mod rules;
pub mod why;
