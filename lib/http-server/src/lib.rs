//! HTTP connections within bounds: the one that is idle for longest makes room, no descriptor is taken from others.
//!
//! **Owns** nothing that lasts. **Needs** a listener and a service. **Provides** [`serve()`], which all servers of the agent
//! use: each connection is a task of its own and HTTP/1.1.
//!
//! So many connections at once as [`Bounds`] say, and no more than a quarter of the descriptors that the process may
//! have. When one more comes, the connection is closed that waits for a request for longest, of those of the peer that
//! has most: a client that opens connections and sends nothing, or begins a request and does not end it, holds nothing up
//! but itself. A connection whose request is being answered is never closed; with nothing but those, the next waits to be
//! accepted. Listeners may share one bound ([`Pool`]). When the kernel has no descriptor left, idle connections are closed too, and the accept is tried again at
//! most ten times a second.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use bytes::Bytes;
//! use http_server::{Bounds, serve};
//! use http_body_util::Full;
//! use hyper::service::service_fn;
//! use tokio_util::sync::CancellationToken;
//! use tokio_util::task::TaskTracker;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let hello = service_fn(|_| async { Ok::<_, Infallible>(http::Response::new(Full::<Bytes>::from("hello"))) });
//! let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
//! # stop.cancel();
//! serve(&listener, Bounds::new(64), hello, &stop, &tasks, |trouble| println!("{trouble:?}")).await;
//! # Ok(())
//! # }
//! ```

mod accept;
mod bounds;
mod open;
mod serve;

pub use accept::{Accept, Peer};
pub use bounds::Bounds;
pub use serve::{Pool, serve, serve_in};
