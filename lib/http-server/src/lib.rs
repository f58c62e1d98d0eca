//! HTTP/1.1 connections within bounds: at capacity the longest idle one is closed, and descriptors stay for the rest of
//! the process.
//!
//! **Owns** no persistent state. **Needs** a listener and a service. **Provides** [`serve()`], which all servers of the
//! agent use: each connection is a task of its own.
//!
//! [`Bounds`] limit the connections open at once, which are never more than a quarter of the descriptors that the
//! process may have. At capacity a new connection evicts the longest idle one of the peer with most connections: a
//! client that opens connections and sends nothing, or an incomplete request, slows down only itself: an eviction waits for no
//! more bytes. A connection with a request in progress is never closed; if all are busy, the new one waits until one of them
//! becomes idle.
//! Several listeners may share one bound ([`Pool`]). When the process has no descriptor left, idle connections are
//! closed as well, and the accept is retried at most ten times a second. A server of small answers on a port, such as that of
//! probes, is a job that calls [`bind_with_retry`] and [`serve_probes`].
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
//! serve(&listener, Bounds::new(64), hello, &stop, &tasks, |error| println!("{error:?}")).await;
//! # Ok(())
//! # }
//! ```

mod accept;
mod bounds;
mod open;
mod probes;
mod serve;

pub use accept::{Accept, Peer};
pub use bounds::Bounds;
pub use probes::{bind, bind_with_retry, serve_probes};
pub use serve::{Pool, serve, serve_in};
