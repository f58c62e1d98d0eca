//! An API server within the process: the cluster objects of scripts and tests, in a table.
//!
//! **Owns** the table `k8s-object-tracker`: every object that was ever added, with a mark on those that were deleted.
//! **Needs** the database. **Provides** an `Arc<Tracker>` for the test, an `Arc<dyn Api>` and one of the hive's sources
//! (`Arc<dyn Source>`, `daemon-k8s`) for the cells under test, and the commands `k8s/*` of scripts.
//!
//! A cell that reads cluster objects is tested by [`cell()`] beside it. Objects may be there before the start, come and go
//! in any order, and a [`resync`](Tracker::resync) makes every watch of a kind list again:
//!
//! ```
//! use hive::prelude::*;
//! use k8s_tables::{Row, core::Namespace};
//! use k8s_fake_apiserver::Tracker;
//! use statedb::Table;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Stands for the cell under test: it follows the namespaces.
//! let gardens = module("gardens", "Gardens", [k8s_tables::table::<Namespace>()]);
//! let cells = [statedb::cell(), k8s_fake_apiserver::cell(), gardens];
//! let mut hive = TestHive::needing::<Table<Row<Namespace>>>(cells);
//! hive.start().await;
//!
//! let tracker = hive.get::<Tracker>();
//! tracker.add("{apiVersion: v1, kind: Namespace, metadata: {name: rosery, labels: {sun: half}}}")?;
//! let namespaces = hive.get::<Table<Row<Namespace>>>();
//! let rosery = namespaces.wait_for(Row::by_name("", "rosery"), |_| true).await;
//! assert_eq!(rosery.metadata.labels.get("sun").unwrap(), "half");
//!
//! let orchard = "{apiVersion: v1, kind: Namespace, metadata: {name: orchard}}";
//! tracker.resync(&k8s_types::Kind::Namespace.into(), &[orchard])?; // all watches of namespaces have lost their place
//! hive.until("only the orchard is left", || {
//!     let names = |row: &statedb::Obj<Row<Namespace>>| row.metadata.name.to_string();
//!     namespaces.all(&namespaces.snapshot()).map(names).eq(["orchard"])
//! })
//! .await;
//! # drop((tracker, namespaces, rosery));
//! # hive.finish().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Differences from a server
//! Lists, watches, uids, versions and conflicts are those of an API server: one body of tests runs against both. Objects
//! are kept as written: no defaults, no admission, no times of creation, and no check of a schema beyond the types
//! of fields. Kinds without a type of ours, such as Deployments, are kept whole and printed with their fields in order of
//! their names. Unknown kinds are refused.
//!
//! As Cilium's tracker has two domains - slim types (`*`) and Kubernetes' own in full (`k8s`) - an object that both
//! know is in the table twice, and is written twice in one transaction.
//!
//! # Differences from Cilium
//! A watch of which a resync ends the validity lists again at once. An object that leaves a watch's selector of fields is
//! a deletion to it, as with servers. Files may hold several objects, and lists. A strict update compares with the
//! version in domain `*` and changes both.

#![forbid(unsafe_code)]

mod api;
mod cell;
mod commands;
mod object;
mod patch;
mod refused;
mod source;
mod tracker;
mod types;

pub use cell::cell;
pub use object::Object;
pub use source::SOURCE;
pub use tracker::Tracker;
pub use types::{Domain, Gvr};
