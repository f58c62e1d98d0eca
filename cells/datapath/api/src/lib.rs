//! The datapath as other cells see it.
//!
//! **Owns** no state: the trait [`Datapath`], its values and errors, and for tests of other cells a
//! [`testing::FakeDatapath`] (feature `test-util`). **Provides** them to cells that need endpoints in the datapath,
//! policy among them, and to the loader, which implements the trait: neither side depends on the other.
//!
//! ```no_run
//! use datapath_api::{Datapath, DatapathError, EndpointDatapath};
//!
//! async fn create(datapath: &dyn Datapath, endpoint: EndpointDatapath) -> Result<(), DatapathError> {
//!     datapath.ready().await;
//!     datapath.attach(&endpoint)?; // 0.1 ms: policy map, settings, interface, program, addresses
//!     datapath.up(&endpoint) // now the pod may send
//! }
//! ```

mod datapath;
mod error;
mod host_mark;
mod socket_lb;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;

pub use datapath::{Datapath, EndpointDatapath, PolicyWrite, Pruned};
pub use error::{DatapathError, Step};
pub use host_mark::HostMark;
pub use socket_lb::{SocketCoverage, SocketLb};
