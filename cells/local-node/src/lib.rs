//! The node the agent runs on: names, addresses, pod ranges.
mod cluster_nodes;
mod config;
mod derive;
mod error;
mod node;
mod restore;
mod settings;
mod state;
mod store;

pub use config::LocalNodeConfig;
pub use error::Error;
pub use node::{AddressType, DEFAULT_CLUSTER, LocalNode};
pub use state::StateConfig;
pub use store::LocalNodeStore;
