//! The Envoy that the agent starts: its bootstrap, its process, its log; and the version of any Envoy.
//!
//! Sibling folders that it uses: none.

pub(crate) mod admin;
mod bootstrap;
mod config;
mod log;
mod supervise;
mod version;

pub(crate) use bootstrap::Bootstrap;
pub use config::{EnvoyLogLevel, EnvoyProcessConfig};
pub(crate) use supervise::Process;
pub(crate) use version::VersionCheck;
