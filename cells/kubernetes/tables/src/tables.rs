//! The tables of each kind: names, columns, interned values.

mod cilium;
mod endpoint_slice;
mod namespace;
mod network_policy;
mod node;
mod pod;
mod service;

pub use endpoint_slice::SERVICE_NAME;
