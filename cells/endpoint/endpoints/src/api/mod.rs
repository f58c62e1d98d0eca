//! Endpoints and their policy in the REST API and in debug information.
//!
//! Sibling folders that it uses: `model`, `requests`.

pub(crate) mod debug;
pub(crate) mod model;
pub(crate) mod policy_model;
pub(crate) mod rest;
