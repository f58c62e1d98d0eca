//! The CiliumNode of this node: written as the local node is, and kept so.
//!
//! **Owns** the fields of the CiliumNode that describe the node: owner, labels, annotations, addresses, boot id, health
//! and ingress addresses, with `ipam=kubernetes` the pod CIDRs. **Needs** the row of
//! `local-node`, the table `k8s-ciliumnodes` and the writer of cluster objects. Fields of others stay: the
//! operator's `spec.ipam.podCIDRs`, annotations that this agent has not written.
//!
//! **Life.** Once the Node is known the object is created, or adopted if it is there. Each change of the local node is written, at
//! most 5 times a second; while the API server is away the newest state waits. An object that is equal costs one GET.
//! While the Node is being deleted nothing is written, so that the object goes with it.
//!
//! **Another writer** of these fields is corrected. Health and one line of the log name the fields; a second agent for the same
//! node shows by this. Corrections are 15 s apart; the report ends a minute after the last one.
//!
//! **Differences from Cilium**, which writes at changes of its local node only, and gives up its start after ten failures.

mod cell;
mod config;
mod desired;
mod error;
mod publish;

pub use cell::cell;
pub use config::CiliumNodeConfig;
pub use error::Error;
