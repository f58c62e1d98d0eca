//! Loads the shared datapath programs and attaches endpoints and devices to them.

mod datapath;
mod error;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;

pub use datapath::{Datapath, EndpointDatapath, Pruned};
pub use error::DatapathError;
