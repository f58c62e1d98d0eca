//! Local redirect policies: traffic to a service or an address is redirected to pods of the same node.
//!
//! **Owns** the tables `localredirectpolicies` and `desired-skiplbmap`, the rows of the pinned maps `cilium_skip_lb4`
//! and `cilium_skip_lb6`; of the tables of services those named `NAMESPACE/POLICY:local-redirect`, and the
//! redirections. **Needs** option `enable-local-redirect-policy`, objects (CiliumLocalRedirectPolicy, the node's pods),
//! the writer of services, endpoints for the cookies of their network namespaces. **Provides** `GET /lrp` and the
//! command `skiplbmap`.
//!
//! **Life.** A policy of an address (`addressMatcher`) makes frontends of its own, one of a service (`serviceMatcher`)
//! redirects the service's cluster addresses; both lead to ready pods of this node in the policy's namespace, and only
//! as long as there are any. Changes within 100 ms are coalesced, those of pods until none has changed for 50 ms; then
//! all policies are evaluated, and differences are written to the tables. Services are complete (`lrp-controller`) once
//! policies, pods and all other sources of services are, so that a restart never leads a redirected frontend to
//! backends of its own.
//!
//! With `skipRedirectFromBackend` the skip maps get a row for each frontend and the network namespace of each pod that
//! takes the traffic, once its endpoint has the cookie. **The datapath does not read them yet:** what such a pod
//! sends to the frontend itself is redirected, too.
//!
//! A policy that is malformed is as one that is not there; health, the row of the job `controller`, names object and
//! field, as does one line of the log.
//!
//! **Differences from Cilium.** Of two policies that request the same address or service the older one has it, of
//! equally old ones the first by name; Cilium has one by accident, or both in turn. A policy that goes takes only its
//! own rows of the skip maps with it, also where a pod serves several policies, and rows that were not requested are
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
