//! Leader election by a lease of Kubernetes: one of several operators runs the cells of the leader.
//!
//! **Owns** the Lease `cilium-operator-resource-lock` while it leads. **Needs** an `Arc<dyn` [`Api`](k8s_types::Api)`>` and the
//! [`Scope`](hive::Scope) of the leader's cells; the options `leader-election-*` and `k8s-namespace`. **Provides**
//! `Arc<`[`Leadership`]`>`, by which writers see whether the lease may still be trusted.
//!
//! - *wait*: the lease is read every two seconds (plus a random part, as client-go does it). Another holder's lease counts from the
//!   moment at which its last renewal was **seen**: clocks of two machines are never compared.
//! - *lead*: the scope is started; the lease is renewed every two seconds. A failure to start the scope ends the process.
//! - *lose*: without a renewal for the renew deadline the process ends with an error, before others may take the lease.
//! - *stop*: the scope is stopped, then the lease is released, so that the next operator leads within a retry period.
//!
//! The lease is the one of Cilium's operator, with its name and form: with that one present ours waits, and the other way round.
//!
//! **Differences from Cilium**: [`Leadership::holds`] fences writes of a process that was suspended past its lease, which
//! client-go does not do.

#![forbid(unsafe_code)]

mod cell;
mod config;
mod election;
#[cfg(test)]
mod election_tests;
mod error;
mod leadership;
mod run;

pub use cell::cell;
pub use config::ElectionConfig;
pub use error::Error;
pub use leadership::Leadership;

/// The name of the lease, which is that of Cilium's operator.
pub const LEASE_NAME: &str = "cilium-operator-resource-lock";
