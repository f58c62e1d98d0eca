//! CiliumIdentities of the label sets that pods have, created by the operator.
//!
//! **Owns** the table `pod-identities` and, with `identity-management-mode` `operator` or `both`, the creation of CiliumIdentities.
//! **Needs** the tables of pods, namespaces and CiliumIdentities, the writer, the
//! [`Leadership`](operator_election::Leadership). **Provides** `Arc<Table<`[`PodIdentity`]`>>`: garbage collection leaves the
//! identities of its rows alone.
//!
//! **Life.** The labels of each pod that has no host network and has not ended are those that agents give its endpoint
//! ([`identity_core::pod_labels`], the options `labels` and `label-prefix-file`); a pod whose namespace is not known waits. A
//! label set with a pod has a row. Without a CiliumIdentity one is created, [`CREATIONS_PER_SECOND`] at most; the id is the
//! first free one in the order that the labels determine, as agents choose it: with `both`, and while the lease changes hands, all
//! want the same object, so a label set gets one. Of several the oldest counts. An identity that was deleted while pods have
//! its labels is created again under its id, and the mark of garbage collection is removed from one that pods have.
//!
//! An id whose object was deleted stays reserved for its labels for [`QUARANTINE`], as packets may carry it. Unused
//! identities are left to garbage collection. Label sets for which no id is left are retried when one is freed.
//!
//! **Differences from Cilium.** Failed writes are retried as long as they are needed, by the writer, not 15 times. An object
//! whose labels another client has changed stays as it is, and the pods get another one: agents follow the objects, so writing
//! it back would change the meaning of an id twice. Deletion is garbage collection's alone, with its grace period.

#![forbid(unsafe_code)]

mod cell;
mod config;
mod controller;
#[cfg(test)]
mod controller_tests;
mod error;
mod label_sets;
mod metrics;
mod mutations;
mod objects;
mod row;

pub use cell::cell;
pub use config::{IdentitiesConfig, ManagementMode};
pub use controller::CREATIONS_PER_SECOND;
pub use error::Error;
pub use objects::QUARANTINE;
pub use row::PodIdentity;
