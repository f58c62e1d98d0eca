//! Drives a target, such as a kernel map, from the rows of a table.
//!
//! **Owns** nothing: the table belongs to the cell, and the status of each object is a field of the object.
//! **Needs** the write handle of a table of objects with a [`Status`], and operations on the target.
//! **Provides** a [`Handle`] that reports the progress of reconciliation.
//!
//! ```
//! use reconciler::{OpCx, OpResult, Ops, Reconciler, Status};
//! use serde::Serialize;
//! use statedb::{Db, Rows, Table};
//!
//! #[derive(Clone, Serialize, Table)]
//! #[table(name = "settings")]
//! struct Setting {
//!     #[primary]
//!     name: String,
//!     value: String,
//!     status: Status,
//! }
//!
//! struct Kernel;
//! impl Ops<Setting> for Kernel {
//!     fn update(&mut self, _: &OpCx<'_>, setting: &mut Setting) -> OpResult {
//!         if setting.name.is_empty() { return Err("no name".into()) } // recorded in the status, retried
//!         Ok(()) // write it
//!     }
//!     fn delete(&mut self, _: &OpCx<'_>, _: &Setting) -> OpResult { Ok(()) }
//!     fn prune(&mut self, _: &OpCx<'_>, _wanted: Rows<'_, Setting>) -> OpResult { Ok(()) }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let settings = Db::new().table::<Setting>()?;
//! let (handle, reconciler) = Reconciler::builder(settings.clone())
//!     .status(|s| &s.status, |s, status| s.status = status)
//!     .ops(Kernel)
//!     .build(); // in a cell: `.spawn(&jobs)`
//! # #[expect(clippy::disallowed_methods, reason = "an example without a hive")]
//! let task = tokio::spawn(reconciler.run());
//!
//! let mut w = settings.write();
//! w.insert(Setting { name: "net.ipv4.ip_forward".into(), value: "1".into(), status: Status::pending() });
//! let revision = settings.revision(&w.commit());
//! handle.wait_until_ok(revision).await?;
//!
//! let snapshot = settings.snapshot();
//! assert!(settings.get(&snapshot, Setting::by_name("net.ipv4.ip_forward")).unwrap().status.is_done());
//! # task.abort();
//! # Ok(())
//! # }
//! ```
//!
//! **Rounds.** Each round processes up to 1000 changes, deletes first. Only objects that are `Pending` or `Refreshing`
//! are reconciled; failures are retried after 200 ms, 400 ms, ... up to a minute. Results are written back in one
//! transaction. A concurrent write of an object wins, and the object is reconciled again, unless its status is still
//! the one that was reconciled. An object whose key in a unique index belongs to another row stays unchanged, with
//! the conflict as its error, and is retried. Several reconcilers of one table each have their own
//! status field, or share a `StatusSet`.
//!
//! **Prune** removes objects from the target that are not in the table: once when all initializers of the table are
//! done, then every hour. **Refresh** reconciles objects again half an hour after their last reconciliation.

#![warn(missing_debug_implementations)]

mod blocking;
mod builder;
#[cfg(feature = "hive")]
mod cell;
mod metrics;
mod ops;
mod progress;
mod refresh;
mod report;
mod retries;
mod round;
mod run;
mod shared;
mod status;
#[cfg(feature = "unstable")]
mod status_set;
mod waits;

pub use builder::{Builder, Operations, StatusField};
pub use metrics::{Counter, Histogram, Listener, Metrics};
#[cfg(feature = "unstable")]
pub use ops::AsyncOps;
pub use ops::{BatchEntry, BatchOps, OpCx, OpError, OpResult, Ops, Waiting};
pub use progress::{Handle, Progress, Stopped};
pub use report::Report;
pub use run::Reconciler;
pub use shared::SharedOps;
pub use status::{Status, StatusKind};
#[cfg(feature = "unstable")]
pub use status_set::StatusSet;
