//! Whether network policies are valid, as conditions in their statuses.
//!
//! **Owns** the condition `Valid` of CiliumNetworkPolicies and CiliumClusterwideNetworkPolicies. **Needs** the [tables] of both
//! kinds, the writer of cluster objects, the [`Leadership`](operator_election::Leadership). **Provides** nothing.
//!
//! Each policy is validated with the parser and the options of the agents, so that its condition states what they do: `True` if
//! they enforce it, `False` with the path and the remedy of each problem if they refuse it (the version before stays in force
//! then). Other conditions and the rest of the status stay. A condition that another client changes or removes is written again;
//! one that is as it should be causes no request.
//!
//! Writes are JSON patches of the status at the version that was validated, and only while the lease holds.
//!
//! **Differences from Cilium**: the message names all problems, not the first one.

#![forbid(unsafe_code)]

mod cell;
mod config;
mod job;
mod object;
mod validation;

pub use cell::{cell, engine_settings, tables};
pub use config::PolicyStatusConfig;
pub use object::PolicyObject;
