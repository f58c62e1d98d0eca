//! CiliumEndpointSlices: the CiliumEndpoints of each namespace in batches, so that agents follow few objects.
//!
//! **Owns** all CiliumEndpointSlices of the cluster.
//! **Needs** the tables of CiliumEndpoints, CiliumEndpointSlices and CiliumNodes, a [`Writer`](k8s_writer::Writer), the
//! [`Leadership`](operator_election::Leadership). **Provides** nothing.
//!
//! Enabled by `enable-cilium-endpoint-slice`. A CiliumEndpoint with addresses and an identity is in one slice for as long as it
//! exists: in the fullest one of its namespace that has room (`ces-max-ciliumendpoints-per-ces`), else in a new one. A slice is
//! written half a second after the first of its changes, so that changes that belong together are one write, at a rate by the number
//! of nodes (`ces-rate-limits`); those of namespaces with the annotation `cilium.io/ces-namespace: priority` first. An empty
//! slice is deleted.
//!
//! A new leader continues with the slices that there are. An endpoint that two of them have stays in the first by name; a slice
//! that another client has changed or deleted is written again.
//!
//! **Differences from Cilium**: a change of an endpoint that no other node needs writes nothing and takes nothing of the rate. Writes
//! are retried until they succeed, not 15 times.

#![forbid(unsafe_code)]

mod assignment;
#[cfg(test)]
mod assignment_tests;
mod cell;
mod config;
mod contents;
mod error;
mod queue;
mod slicer;

pub use cell::cell;
pub use config::EndpointSlicesConfig;
pub use error::Error;
