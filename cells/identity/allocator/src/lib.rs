//! Security identities of label sets and prefixes.
//!
//! **Owns** the table `identities`, the identities of workloads with their file `state/identities.json`, those of prefixes
//! and of other nodes with theirs, `state/local_allocator_state.json`, in Cilium's form; in a cluster the CiliumIdentities that this node's
//! workloads need, and the table `identity-requests`.
//! **Needs** the node's options; the cluster's objects and their writer, if there is one.
//! **Provides** [`Identities`] to owners of workloads, [`Prefixes`] to owners of
//! prefixes, of names and of the API server's addresses, by it [`NodeIdentities`] to the owner of nodes, the table to readers, `GET /identity` and `GET /identity/{id}`.
//!
//! **Life.** Reserved and well-known identities exist from the start. Files of the previous run are read before the
//! first allocation; then the endpoints' records and the kernel's ipcache reserve the identities that packets carry
//! already, with precedence over the files. The table is initialised once all of these sources are complete. A new
//! identity of a workload is on disk before it is used; a prefix's is at least in the kernel before packets carry it.
//!
//! A damaged file is quarantined, a file of a newer agent fails the start; a job retries failed writes and reports them
//! in the rows `identities.json` and `local_allocator_state.json` of health.
//!
//! Identities of prefixes that have not been requested again are released when all sources of the ipcache are complete
//! and a grace period has ended (`identity-restore-grace-period`).
//!
//! **Exhaustion** of the range of workloads is forecast from its growth: a row of health is degraded when the last id is used
//! within six hours, and metrics have the time left. Then [`Error::Exhausted`] is returned; ids in use stay as they are.
//!
//! **An identity is not reused for other labels** while packets may still carry it: without a user it is kept for its
//! labels, in the table as well, for [`QUARANTINE`]; the same labels get it back. Ids of prefixes are reused as late as
//! possible.
//!
//! **In a cluster** (with an API server) identities of workloads are CiliumIdentities. The table has all of them, and is
//! initialised when they have been listed. Labels that the table has need no server. For others [`Identities::allocate`]
//! returns [`Error::Waiting`]; a row of `identity-requests` stands for them until a job has created the object, which
//! waits for the server as long as it takes. Its id is the first free one in the order that the labels determine, so nodes
//! that allocate the same labels at once agree. An object that goes while it is in use here is created again; one whose
//! id has other labels by now takes the identity away from this node's users, which get another one. Objects that are no
//! identities of workloads are ignored, with a row of health. With `identity-management-mode` `operator` nothing is created, and health
//! names the label sets that wait for the operator.
//!
//! **Without an API server** CiliumIdentities of other sources, such as a folder of manifests, are the identities that packets
//! of other nodes carry: they are rows of the table, so that policy selects them. An id that a workload of this node has with
//! other labels stays the workload's; health names the object.
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
//! **Differences from Cilium.** Without Kubernetes and kvstore identities of workloads are allocated by this node alone, and
//! objects of them are read and never written. The
//! labels determine where a search begins, so that a lost file seldom changes an identity. In a cluster two nodes do not create
//! two identities for one label set, and the start does not fail while identities cannot be listed: packets keep the verdicts
//! that they have.

mod allocator;
mod cell;
mod cidr;
mod cluster;
mod config;
mod crd;
mod error;
mod follow;
mod forecast;
mod identity;
mod label_key;
mod metrics;
mod nodes;
mod prefixes;
mod request;
mod reserved;
mod rest;
mod store;
pub mod testing;
#[cfg(test)]
mod tests;
mod users;

pub use allocator::{Identities, QUARANTINE};
pub use cell::cell;
pub use cidr::cidr_labels;
pub use config::{AllocationMode, IdentityConfig, ManagementMode};
pub use error::Error;
pub use identity::Identity;
pub use identity_core::{ClusterObject, Range, Scope};
pub use nodes::NodeIdentities;
pub use prefixes::Prefixes;
pub use request::IdentityRequest;
pub use users::Users;
