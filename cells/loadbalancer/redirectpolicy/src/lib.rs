//! Local redirect policies: traffic to a service or an address is redirected to pods of the same node.
//!
//! **Owns** the tables `localredirectpolicies` and `desired-skiplbmap`, the rows of the pinned maps `cilium_skip_lb4`
//! and `cilium_skip_lb6`; of the tables of services those named `NAMESPACE/POLICY:local-redirect`, and the
//! redirections. **Needs** option `enable-local-redirect-policy`, objects (CiliumLocalRedirectPolicy, the node's pods),
//! the writer of services, endpoints for the cookies of their network namespaces. **Provides** `GET /lrp` and the
//! command `skiplbmap`.
//!
//! **Lifecycle.** A policy for an address (`addressMatcher`) creates frontends of its own, one for a service
//! (`serviceMatcher`) redirects the service's ClusterIP frontends; both redirect to ready pods of this node in the
//! policy's namespace, and only as long as there are any. Changes within 100 ms are coalesced, those of pods until none
//! has changed for 50 ms; then all policies are evaluated, and differences are written to the tables. Services are
//! complete (`lrp-controller`) once policies, pods and all other sources of services are, so that a restart never
//! forwards a redirected frontend to its own backends.
//!
//! With `skipRedirectFromBackend` the skip maps get an entry for each frontend and the network namespace of each target
//! pod, once its endpoint has the cookie. **The datapath does not read them yet:** traffic of such a pod to the
//! frontend is redirected, too.
//!
//! An invalid policy has no effect; the health report of the job `controller` and one line of the log name object and
//! field.
//!
//! **Differences from Cilium.** Of two policies that request the same address or service the older one takes effect, of
//! equally old ones the first by name; in Cilium it depends on timing, or alternates. Deleting a policy removes only
//! its own entries of the skip maps, even if a pod serves several policies, and entries that were not requested are
//! pruned.

mod candidate;
mod cell;
mod commands;
mod config;
mod controller;
mod error;
mod evaluate;
mod policy;
mod rest;
mod skip;
mod skip_map;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use cell::{cell, control_plane};
pub use config::{Ranges, RedirectConfig, WrongRange};
pub use error::Malformed;
pub use policy::{Kind, LocalRedirectPolicy, Matched, Port};
pub use skip::DesiredSkip;
pub use skip_map::{KernelSkipMaps, MapError, SkipKey, SkipMaps, SkipMapsProvider};
