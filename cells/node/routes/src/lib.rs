//! Routes and rules that cells desire, kept in the kernel by reconcilers.
//!
//! **Owns** table `desired-routes`: the routes of each owner, with their status; the routes of the kernel that it has
//! written, by the log `state/route-reconciler.wal`. Table `desired-rules`: rules of policy routing, likewise.
//! **Needs** the tables `devices` and `routes`; the folder of [`StateConfig`](local_node::StateConfig); the kernel by
//! rtnetlink.
//! **Provides** [`Routes`] and [`Rules`], by which owners set, replace and delete their routes and rules, and wait for the
//! kernel's result.
//!
//! **Life.** A route is recorded in the log, then written, up to 100 in one message to the kernel. Those that the previous
//! run has left are compared and stay untouched if they are equal; those that are not desired any more are deleted when
//! all initializers of the table are done. Nothing is removed at the stop. A route that the kernel loses - by another
//! process, with an address, with a link - is written again within a second after the live tables report it, which they
//! do by notifications; without changes nothing runs.
//!
//! **Selection.** Owners may desire the same destination in the same table with the same metric: the route with the lowest
//! administrative distance, then that of the first owner by name, is selected, and is alone in the kernel. When it is
//! deleted, the next one replaces it in place.
//!
//! **Routes of others** are never touched: a destination that the kernel has a route to already, of another protocol or
//! of a device's address, is an error of the row. Exceptions are routes of protocol `kernel` that Cilium or an earlier
//! version has left for the same destination, and those by a device that an owner [claims](Routes::claim_device).
//!
//! **Rules** are the same in the kernel whatever made them, and Cilium keeps no log of them: owners [claim](Rules::claim)
//! pairs of a priority and a table; rules of these that are not desired are deleted when all initializers of the table
//! are done. All other rules stay. A rule that the kernel loses is written again within a second after its notification.
//! One that [replaces](DesiredRule::replaces) another, such as that of the local table at priority 0, is written first.
//!
//! ```
//! use std::sync::Arc;
//!
//! use hive::prelude::*;
//! use routes::{DesiredRoute, Routes};
//!
//! fn endpoint_route(routes: Arc<Routes>, lifecycle: Lifecycle) {
//!     lifecycle.hook("route").on_start(move |_| async move {
//!         let route = DesiredRoute::new("10.0.0.7/32".parse()?).device("lxc7").scope(devices::SCOPE_LINK);
//!         routes.upsert_wait("endpoint/7", vec![route]).await?;
//!         Ok(())
//!     }).add();
//! }
//!
//! let state = config::<local_node::StateConfig>();
//! hive::validate([statedb::cell(), devices::cell(), state, routes::cell(), invoke(endpoint_route)]).unwrap();
//! ```
//!
//! **Differences from Cilium.** Routes name their device by its name, so that they return with a device that is created
//! again. A route of another process is not replaced. Devices and routes of the kernel are compared with what is
//! desired; Cilium writes all routes again after each change. Cilium writes rules once, at its start, and has no table of
//! them.

mod cell;
mod error;
mod fib;
mod handle;
mod ops;
mod refresh;
mod route;
mod rules;
mod wal;

pub use cell::cell;
pub use error::Error;
pub use fib::FibKey;
pub use handle::{Routes, WAIT_LIMIT};
pub use route::{DEFAULT_ADMIN_DISTANCE, DesiredRoute, Hop, RouteId};
pub use rules::{DesiredRule, Rules};
