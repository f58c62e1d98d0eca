//! Security identities: the numbers behind label sets and prefixes.
//!
//! **Owns** the table `identities`, the numbers of workloads with their file `state/identities.json`, the numbers of
//! prefixes with theirs, `state/local_allocator_state.json`, as Cilium keeps it.
//! **Needs** the node's options. **Provides** [`Identities`] to owners of workloads, [`Prefixes`] to owners of
//! prefixes, the table to readers, `GET /identity` and `GET /identity/{id}`.
//!
//! **Life.** Reserved and well-known numbers are there from the start. Files of the previous run are read before
//! anything may allocate; then the endpoints' records and the kernel's ipcache say which numbers packets carry already,
//! and these win over the files. The table is initialised once all of them have spoken. Every new number of a workload
//! is on disk before it is given out; a prefix's is at least in the kernel before packets carry it.
//!
//! A damaged file is put aside, one of a newer agent ends the start; what cannot be written for now is written by a job
//! later, reported in the rows `identities.json` and `local_allocator_state.json` of health.
//!
//! Numbers of prefixes that were not requested go when the ipcache has heard all its sources and a grace period is
//! over (`identity-restore-grace-period`).
//!
//! **A number is not used for something else** while anything may still carry it: one without a user stays with its
//! labels, in the table as well, for [`QUARANTINE`]; the same labels get it back. What prefixes have had is used again
//! last of all.
//!
//! ```
//! use identity::testing;
//! use labels::Labels;
//!
//! let (identities, prefixes, table) = testing::identities();
//! let web = identities.allocate(&Labels::parse(["k8s:app=web"]), "endpoint/7")?;
//! assert!((256..=65535).contains(&web));
//! let world = prefixes.allocate(&["192.0.2.0/24".parse()?])?;
//! assert_eq!(world.into_values().collect::<Vec<_>>(), [16_777_217]);
//! assert_eq!(table.get(&table.snapshot(), identity::Identity::by_id(web)).unwrap().labels.texts(), ["k8s:app=web"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Differences from Cilium.** Without Kubernetes and kvstore the numbers of workloads come from this node alone. Where
//! a search begins is told by the labels, so that a lost file seldom changes a number.

mod allocator;
mod cell;
mod cidr;
mod config;
mod error;
mod identity;
mod metrics;
mod prefixes;
mod range;
mod reserved;
mod rest;
mod store;
pub mod testing;
#[cfg(test)]
mod tests;

pub use allocator::{Identities, QUARANTINE};
pub use cell::cell;
pub use cidr::cidr_labels;
pub use config::IdentityConfig;
pub use error::Error;
pub use identity::Identity;
pub use prefixes::Prefixes;
pub use range::{Range, Scope};
