//! The xDS server: gRPC on a unix socket.
//!
//! Sibling folders that it uses: none.

mod service;
mod socket;

pub(crate) use service::Services;
pub(crate) use socket::serve;
