//! Writes objects to the cluster: a queue of mutations, at most one for each object.
//!
//! **Owns** the table `k8s-writes`: pending mutations with their last errors.
//! **Needs** an `Arc<dyn Api>`; without one each mutation ends at once with [`NotWritten::NoServer`].
//! **Provides** `Arc<`[`Writer`]`>`.
//!
//! A [`Mutation`] is a function that gets the server's object and returns the next [`Step`]. To change the desired
//! state, a caller enqueues another one: only the newest mutation of an object is executed, and it is retried until it
//! is done.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use hive::prelude::*;
//! use k8s_types::{Key, Kind};
//! use k8s_writer::{NotWritten, Target, Mutation, Writer};
//!
//! /// Get, change, put; create if missing; at most 10 attempts, 500 ms apart.
//! async fn publish(writer: Arc<Writer>, node: &str, addresses: serde_json::Value) -> Result<(), NotWritten> {
//!     let mutation = Mutation::edit(move |node| node["spec"]["addresses"] = addresses.clone())
//!         .tries(10, Duration::from_millis(500));
//!     writer.enqueue(Target::new(Kind::CiliumNode, Key::new("", node)), mutation).done().await?;
//!     Ok(())
//! }
//!
//! let publish_at_start = |writer: Arc<Writer>, jobs: JobGroup| {
//!     jobs.one_shot("publish", |_| async move {
//!         Ok(publish(writer, "n1", serde_json::json!([{"type": "InternalIP", "ip": "10.0.0.1"}])).await?)
//!     }).add();
//! };
//! hive::validate([statedb::cell(), k8s_writer::cell(), invoke(publish_at_start)]).unwrap();
//! ```
//!
//! **Order.** At most one request per object is in flight, including its parts; 8 objects at a time, the oldest
//! mutation first.
//!
//! **Failures.** A stale object (conflict, gone, exists already) is read again, after 0.1 s, 0.2 s, ... up to a minute.
//! A lost response is handled likewise: the object that is read shows whether the request was executed. A refusal (403,
//! 422) is a row of health for each verb and kind with the remedy, retried after 10 s to 10 minutes. While the server
//! is unreachable (requests of two objects in a row failed, or it sent `Retry-After`), one object at a time is tried,
//! every 0.5 s to 10 s, until it responds; then all are tried. An outage costs the rows of the table and a request
//! every 10 s.
//!
//! **Stop.** Due mutations are executed for half a second; the tickets of the others then end with
//! [`NotWritten::Stopped`]. Nothing is stored: the cells of the next run enqueue their desired objects again.
//!
//! **Why no reconciler** (`cells/reconciler`): requests of many objects are in flight concurrently, and the backoff
//! depends on the state of the server more than on that of the object.
//!
//! **Differences from Cilium.** Owners of writes do not retry at fixed intervals while the server is unreachable.

mod attempt;
mod cell;
mod metrics;
mod mutation;
mod refusals;
mod run;
mod schedule;
mod target;
#[cfg(feature = "test-util")]
pub mod testing;
mod write;
mod writer;

pub use cell::cell;
pub use mutation::{Mutation, NotWritten, Step, Verb, Written};
pub use target::Target;
pub use write::{Write, WriteState};
pub use writer::{Ticket, Writer};
