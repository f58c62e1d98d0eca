//! Policy in the REST API, and the operation that explains a verdict.
//!
//! Sibling folders that it uses: `computation`, `model`, `rounds`.

pub(crate) mod l4;
pub mod preview;
pub(crate) mod proxy;
pub(crate) mod rest;
pub(crate) mod rules;
pub mod why;
