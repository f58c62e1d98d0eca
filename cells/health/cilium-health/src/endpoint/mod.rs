//! The health endpoint: an endpoint of this node that other nodes probe through the datapath, as if it were a pod.
//!
//! [`namespace`] makes its network namespace while the process has all its capabilities, [`link`] connects the namespace
//! with the node, [`addresses`] allocates, [`follow`] makes the endpoint and makes it again when it is lost.
//!
//! Sibling folders that it uses: none.

mod addresses;
mod follow;
mod link;
mod namespace;

pub(crate) use addresses::OWNER;
pub(crate) use follow::HealthEndpoint;
pub(crate) use link::remove_leftovers;
pub use namespace::{EndpointNamespace, EndpointNamespaceSlot};
