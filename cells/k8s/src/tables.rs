//! The tables of each kind: names, columns, what is shared.

mod endpoint_slice;
mod namespace;
mod node;
mod pod;
mod service;

pub use endpoint_slice::SERVICE_NAME;
