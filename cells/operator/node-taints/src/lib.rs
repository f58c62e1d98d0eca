//! Taints of nodes without a ready agent, and the condition that the network of a node is up.
//!
//! **Owns** the taint `agent-not-ready-taint-key` and the condition `NetworkUnavailable` with reason `CiliumIsUp` of all Nodes.
//! **Needs** the tables of Nodes and pods, the writer of cluster objects, the [`Leadership`](operator_election::Leadership).
//! **Provides** nothing.
//!
//! - *ready*: a node with a ready agent pod that is not being deleted loses the taint, whatever its effect
//!   (`remove-cilium-node-taints`), and gets the condition if it lacks it (`set-cilium-is-up-condition`).
//! - *not ready*: a node with agent pods of which none is ready gets the taint with the effect `NoSchedule` (`set-cilium-node-taints`).
//! - *no agent pod*: the node is left alone.
//!
//! Taints are replaced by a JSON patch that tests the list that the decision was made on; taints of others stay. Each node is
//! retried on its own.
//!
//! **Differences from Cilium**: a node without any taint gets the first one only at the version that was read, so that a taint
//! that another client adds at the same time is not lost.

#![forbid(unsafe_code)]

mod agent_pods;
mod cell;
mod config;
mod error;
mod node;
mod sync;

pub use cell::cell;
pub use config::NodeTaintsConfig;
pub use error::Error;
