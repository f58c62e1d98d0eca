//! Writes objects to the cluster: a queue of mutations, at most one for each object.
//!
//! **Owns** the table `k8s-writes`: pending mutations with their last errors.
//! **Needs** an `Arc<dyn Api>`; without one each mutation ends at once with [`NotWritten::NoServer`].
//! **Provides** `Arc<`[`Writer`]`>`.
//!
//! A [`Mutation`] is a function that gets an object as the server has it and returns the next [`Step`]. A caller that wants
//! something else of the object enqueues another one: only the newest mutation counts, and it is retried until it is done.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use hive::prelude::*;
//! use k8s_types::{Key, Kind};
//! use k8s_writer::{NotWritten, Target, Mutation, Writer};
//!
//! /// Get, change, put; make it if it is not there; at most 10 times, 500 ms apart.
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
//! **Order.** At most one request an object is under way, whatever its parts; 8 objects at a time, the one that waits for
//! longest first.
//!
//! **Failures.** A stale object (conflict, gone, exists already) is read again, after 0.1 s, 0.2 s, ... up
//! to a minute. A lost answer is such a case: the object that is read shows whether the request was carried out. A refusal
//! (403, 422) is a row of health for each verb and kind with the remedy, retried after 10 s to
//! 10 minutes. When the server is unreachable - requests of two objects in a row fail, or it asks to wait -
//! one object at a time is tried, every 0.5 s to 10 s, until it answers; then all go. An outage costs the rows of the table
//! and a request every 10 s.
//!
//! **Stop.** Due mutations are carried out for half a second; the tickets of the others then end with
//! [`NotWritten::Stopped`]. Nothing is kept for the next run, whose cells enqueue their desired objects then.
//!
//! **Why no reconciler** (`cells/reconciler`): requests of many objects are under way at a time, and how long an object waits is
//! the server's state before it is the object's own.
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
mod write;
mod writer;

pub use cell::cell;
pub use mutation::{Mutation, NotWritten, Step, Verb, Written};
pub use target::Target;
pub use write::{Write, WriteState};
pub use writer::{Ticket, Writer};
