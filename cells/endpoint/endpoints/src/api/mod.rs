//! Endpoints and their policy as the REST API shows them.
//!
//! Sibling folders that it uses: `model`, `requests`.

pub(crate) mod model;
pub(crate) mod policy_model;
pub(crate) mod rest;
