//! The agent's REST server on a unix socket, to which cells add operations.
//!
//! **Owns** the socket (`--socket-path`), the table of the 44 operations of Cilium 1.20 and the checks before them:
//! paths, methods, content types, required values, access (`--enable-cilium-api-server-access`), limits
//! (`--api-rate-limit`), sizes, timeouts. Refused requests get the status, code and text of Cilium. `GET /debuginfo` is
//! answered here, from the answers of other operations and the texts that cells add.
//! **Needs** the metrics registry. **Provides** nothing but the socket: cells contribute [`Route`]s, [`StatusSource`]s
//! for `/healthz` and [`DebugSource`]s for `/debuginfo`. Servers of other APIs share [`Socket`] and [`Response`].
//!
//! ```
//! use api::{Operation, Request, Response, Route};
//! use hive::prelude::*;
//!
//! fn new_routes() -> Member<Route> {
//!     Member(Route::new(Operation::GetIdentityID, |request: Request| async move {
//!         match request.param("id").parse() {
//!             Ok(id) => Response::json(200, &api_models::Identity { id, ..Default::default() }),
//!             Err(_) => Response::empty(400),
//!         }
//!     }))
//! }
//!
//! fn my_cell() -> Cell {
//!     module("my-cell", "Answers one operation", [provide(new_routes)])
//! }
//! ```
//!
//! **Life**: constructed after all cells that contribute routes; listens in its start hook, so that each answer is that
//! of a restored agent; a stop waits for requests in flight, 10 s at most.
//!
//! **Layers** (tower), outermost first: request metrics, deadline of 60 s, routing, access, checks with the body (1 MiB
//! at most), limits, handler. A handler runs in a task of its own and completes even if its client disconnects.
//!
//! **Besides the operations**: tables, with rows as JSON. `GET /statedb/dump` and `/statedb/dump/{table}`: all rows.
//! `GET /statedb/query`: those of an index with a key, or from it on; keys are bytes as Cilium encodes them.
//! `GET /statedb/changes/{table}`: all rows, then every change, a keep-alive every 30 s; a client that reads nothing
//! for 60 s is disconnected.
//!
//! `GET /apiary/{name}`: requests of our own tools, each a [`Page`] of a cell, under a path that Cilium does not use.
//!
//! **Operations that no cell claims** answer as Cilium does with that feature off.
//!
//! **Differences from Cilium**: without `--api-rate-limit` requests are admitted by queue depth (64 served and 1024
//! waiting of a kind) and deadline, not by 0.5 a second; bodies are limited; a body with bytes after its JSON value is
//! refused; a handler that panics is answered with 500 and does not affect the server; metrics have unknown paths under
//! one label.

mod access;
mod cell;
mod config;
mod debug;
mod error;
mod layers;
mod limit;
mod measure;
mod off;
mod operation;
mod page;
mod request;
mod response;
mod route;
mod router;
mod rules;
mod server;
mod socket;
mod status;
mod tables;
mod uuids;

pub use cell::cell;
pub use config::ApiConfig;
pub use debug::DebugSource;
pub use error::Error;
pub use off::refused_name_filters;
pub use operation::Operation;
pub use page::{Page, Query};
pub use request::Request;
pub use response::{Body, Response};
pub use route::Route;
pub use socket::Socket;
pub use status::StatusSource;
pub use uuids::ControllerUuids;
