//! Garbage collection of identities, endpoints, nodes and slices, and restarts of pods without an endpoint.
//!
//! **Owns** the annotation `io.cilium.heartbeat` of CiliumIdentities, and the deletion of objects that their agents have left.
//! **Needs** the tables of CiliumIdentities, CiliumEndpoints, CiliumEndpointSlices, CiliumNodes, Nodes and pods, `pod-identities`, an
//! `Arc<dyn` [`Api`](k8s_types::Api)`>`, the [`Leadership`](operator_election::Leadership). **Provides** nothing.
//!
//! - *identities* (`identity-gc-interval`): one that no endpoint uses, nor a pod for which the operator has created it, and that has given no sign of life for
//!   `identity-heartbeat-timeout` is marked by the annotation; still marked after another timeout it is deleted, at the version that
//!   was read. An agent that uses it takes the mark away, which is a sign of life, as is any change of the object and an endpoint
//!   with the identity. A new leader knows no signs and waits for a timeout first.
//! - *endpoints* (`cilium-endpoint-gc-interval`): a CiliumEndpoint is deleted after its pod has been missing or ended for an interval.
//! - *nodes* (`nodes-gc-interval`): a CiliumNode without owner is deleted after its Node has been missing for an interval, unless
//!   its annotation `cilium.io/do-not-gc` is `true`.
//! - *slices*: all are deleted once if slices are off.
//! - *pods* (`unmanaged-pod-watcher-interval`): a running pod of `pod-restart-selector` that has no CiliumEndpoint for 30 s is deleted,
//!   so that its controller makes it again with one; one in a run, one of a name every 5 minutes.
//!
//! Each object is looked up again in its table before its request, and each request depends on the object's uid. A conflict skips the
//! object; a refusal is named in health and counted; a server that is away ends the run until the next interval.
//!
//! **Differences from Cilium**: an object that cannot be marked does not end the run. The time that an object is left for is
//! measured by this process, not by timestamps of others. `cilium-endpoint-gc-interval=0` turns the collection off instead of
//! deleting all CiliumEndpoints. Without CiliumEndpoints (`disable-endpoint-crd`) no identity is collected, as its use is unknown.

#![forbid(unsafe_code)]

mod candidates;
mod cell;
mod config;
mod endpoints;
mod error;
mod identities;
mod leftovers;
mod life_signs;
#[cfg(test)]
mod life_signs_tests;
mod metrics;
mod nodes;
mod object;
mod requests;
mod slices;
mod unmanaged_pods;

pub use cell::cell;
pub use config::GarbageCollectionConfig;
pub use error::Error;
