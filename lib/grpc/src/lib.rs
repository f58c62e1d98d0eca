//! Connections of gRPC (HTTP/2), for servers and clients of tonic's services. The sockets are the caller's: unix, TCP, TLS.
//!
//! **Owns** no persistent state. **Needs** streams, and a service that answers requests. **Provides** [`Server`], the
//! connections of a listener, and [`Connection`], which clients of generated services take, and
//! [`Reflection`], by which clients read the definitions of services.
//!
//! A server is bounded by [`Bounds`]: connections, requests of each, bytes that wait for a client that does not read, and
//! the time of a client that is silent or gone.

mod client;
mod preface;
mod reflection;
mod server;

pub use client::{Connection, Work};
pub use reflection::{Reflection, ReflectionError};
pub use server::{ACCEPT_RETRY, Bounds, Server};
