//! An in-process API server: the cluster objects of scripts and tests, in a table.
//!
//! **Owns** the table `k8s-object-tracker`: all objects that were ever added, with a mark on deleted ones.
//! **Needs** the database. **Provides** an `Arc<Tracker>` for the test, an `Arc<dyn Api>` and one of the hive's sources
//! (`Arc<dyn Source>`, `daemon-k8s`) for the cells under test, and the commands `k8s/*` of scripts.
//!
//! A cell that reads cluster objects is tested with [`cell()`] in the same hive. Objects may exist before the start, be
//! added and deleted in any order, and a [`resync`](Tracker::resync) makes every watch of a kind list again:
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
//! tracker.resync(&k8s_types::Kind::Namespace.into(), &[orchard])?; // all watches of namespaces expire
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
//! [`HttpServer`] serves a tracker by HTTP, so that whole agents and operators use it as their cluster.
//!
//! # Differences from a server
//! Lists, watches, uids, versions and conflicts are those of an API server: the same tests run against both. Objects
//! are stored as written: no defaults, no admission, no creation timestamps, and no schema validation beyond the types
//! of fields. Kinds without a type in `k8s_types`, such as Deployments, are stored completely and printed with their
//! fields sorted by name. Unknown kinds are refused.
//!
//! Cilium's tracker has two domains, slim types (`*`) and complete Kubernetes types (`k8s`). Accordingly, an object
//! that both know has two rows in the table, which are written in one transaction.
//!
//! # Differences from Cilium
//! A watch that a resync invalidates lists again at once. An object that no longer matches a watch's field selector is
//! reported as deleted, as by servers. Files may contain several objects, and lists. A strict update compares the
//! version in domain `*` and changes both.

#![forbid(unsafe_code)]

mod api;
mod cell;
mod commands;
mod http;
mod object;
mod patch;
mod refused;
mod server;
mod source;
mod tracker;
mod types;

pub use cell::cell;
pub use http::HttpServer;
pub use object::Object;
pub use server::{FakeServer, Request};
pub use source::SOURCE;
pub use tracker::Tracker;
pub use types::{Domain, Gvr};
