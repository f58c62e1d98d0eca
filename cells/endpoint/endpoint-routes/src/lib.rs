//! Routes to the pods of this node by their own interfaces.
//!
//! **Owns** the desired routes of the owners `endpoint/<id>`. **Needs** the tables `endpoints` and `desired-routes`
//! ([`Routes`](routes::Routes)). **Provides** nothing.
//!
//! **Life.** With `enable-endpoint-routes` each endpoint with an interface has a route for each address, `ADDRESS dev lxcX
//! scope link`, from the end of its first regeneration - its interface has the program that enforces policy on packets by
//! the route - until its deletion. Routes of the previous run stay until all its endpoints have been regenerated; then those
//! that are not desired are deleted. The desired routes are kept in the kernel by the cell of [`routes`]. Without the option
//! no route is desired.
//!
//! An endpoint whose request asks for such a route (`install-endpoint-route`) while the option is off has none: the programs
//! know endpoint routes for all pods of a node or for none. Health names these endpoints.
//!
//! ```
//! use hive::prelude::*;
//!
//! let endpoints = statedb::table::<endpoints::Endpoint>();
//! let options = [config::<local_node::StateConfig>(), config::<maps::FamilyConfig>()];
//! hive::validate([
//!     statedb::cell(),
//!     devices::cell(),
//!     routes::cell(),
//!     tunnel::cell(),
//!     bundle(options),
//!     endpoints,
//!     endpoint_routes::cell(),
//! ])
//! .unwrap();
//! ```
//!
//! **Differences from Cilium.** The requests of pods are not changed by the option; no endpoint has a route of its own while
//! others have none.

#![forbid(unsafe_code)]

mod cell;
mod desired;
mod follow;

pub use cell::cell;
