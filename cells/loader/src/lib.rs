//! Loads the shared datapath programs and attaches endpoints and devices to them.

mod datapath;
pub mod device_links;
mod error;
pub mod host;
mod kernel;
mod pool;
mod programs;
mod restore;
mod slots;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;

pub use datapath::{Datapath, EndpointDatapath, Pruned};
pub use error::DatapathError;
pub use kernel::{KernelDatapath, KernelOptions, POD_INTERFACE_PREFIX, is_pod_interface};
pub use pool::{PolicyMap, PolicyPool, READY};
pub use programs::ProgramSet;
pub use slots::QUARANTINE;
