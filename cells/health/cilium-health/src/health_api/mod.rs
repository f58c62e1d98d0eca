//! The health API: `health.sock` with `/v1beta`.
//!
//! [`access`] checks the allowed operations, [`report`] makes models of rows, [`load`] reads the machine's load,
//! [`server`] answers.
//!
//! Sibling folders that it uses: `prober`.

mod access;
mod load;
mod report;
mod server;

pub(crate) use access::Access;
pub(crate) use server::{HealthApi, SOCKET};
