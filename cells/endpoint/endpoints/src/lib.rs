//! The workloads on this node: their records, states, files and datapath.
//!
//! **Owns** the table `endpoints`, the records under `state/<id>/ep_config.json`, the CNI plugin's deletion queue.
//! **Needs** the datapath, policy, identities, the ipcache, the allocator, the node's row; cluster objects, if there are any.
//! **Provides** [`Endpoints`], [`CiliumEndpointUids`], [`NameRecords`], the operations under `/endpoint`, to the allocator the addresses of
//! the previous run.
//!
//! **Life of an endpoint.** `PUT /endpoint/{id}` inserts a row into the table, takes over the addresses, sets the labels of
//! the pod's object - `reserved:init` without one - and their identity, and waits for the reconciler: record on disk, datapath
//! that denies, policy, ipcache, interface up. Labels that change later, by request or with the objects of pod and namespace,
//! lead to another identity; packets carry it once all policy maps have it. A deletion sets the row to `disconnecting`; the
//! reconciler removes the endpoint's state in an order in which packets drop first and the record goes last; then the row is
//! deleted and the request is answered.
//!
//! **The ingress endpoint** has the node's ingress addresses, if there are any: an identity and a policy that Envoy
//! enforces, without an interface.
//!
//! **Life of the cell.** At start records are read and their endpoints inserted into the table, addresses and identities
//! reserved, while the kernel goes on forwarding by the policy that it has. Once the datapath is ready each is regenerated in
//! place, state without an owner is pruned, queued deletions are served, and only then requests that change endpoints are
//! accepted. [`restore::plan`] decides on each directory, a function of the folder and the links:
//!
//! ```
//! use endpoints::{StateFolder, restore};
//!
//! let folder = std::env::temp_dir().join("no-such-state-folder");
//! let plan = restore::plan::plan(StateFolder::new(folder).scan()?, |name| (name == "lxc12345").then_some(7));
//! assert!(plan.restore.is_empty() && plan.discard.is_empty());
//! # Ok::<(), endpoints::error::StateError>(())
//! ```
//!
//! **Differences from Cilium.** With `sync-build-endpoint` a failed regeneration fails the request at once with its cause,
//! not after the client's timeout. An interface with a changed index is found by its name. Endpoint ids are reused
//! as late as possible. State directories without a readable record are kept and logged. A change of identity waits for policy,
//! not for a grace period.

mod api;
mod cell;
mod cilium_endpoint_uids;
mod config;
mod gc;
mod links;
mod metrics;
mod model;
mod names;
mod pod_metadata;
mod reconcile;
mod requests;
pub mod restore;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use cell::cell;
pub use cilium_endpoint_uids::CiliumEndpointUids;
pub use config::EndpointsConfig;
pub use links::{Link, Links, kernel_links};
pub use model::endpoint::Endpoint;
pub use model::error;
pub use model::id::{EndpointId, Name};
pub use model::log::{Change, Code, Component, Log};
pub use model::mac::Mac;
pub use model::op_labels::OpLabels;
pub use model::options::{BadOption, Options};
pub use model::record::{DatapathConfiguration, OptionMap, Record, SecurityLabel};
pub use model::state::State;
pub use names::{NameRecords, RecordedNames};
pub use requests::fence::NotOpen;
pub use requests::service::{Endpoints, Refused};
pub use restore::files::{Found, StateFolder};
pub use restore::queue::{Deletion, DeletionQueue, Queued};
pub use restore::start::Outcome;
