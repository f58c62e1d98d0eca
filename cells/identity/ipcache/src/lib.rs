//! Which identity an address has: the table and its mirror in the kernel.
//!
//! **Owns** the table `ipcache` and the rows of the pinned map `cilium_ipcache_v2`.
//! **Needs** the maps, the node's row and addresses.
//! **Provides** [`IpcacheWriter`] to the sources, the table to readers, `GET /ip`.
//!
//! **Life.** Rows of the previous run are read at start and stay, as claims of the least believed [`Source`], until
//! every source registered with [`IpcacheWriter::register`] has said what it knows; then what nobody has claimed
//! goes. The host's addresses and the world are the cell's own claims.
//!
//! ```
//! # use std::sync::Arc;
//! use ipcache::{IpcacheWriter, Mapping, Source};
//!
//! async fn announce(ipcache: &IpcacheWriter) -> Result<(), Box<dyn std::error::Error>> {
//!     let pod = "10.244.0.7/32".parse()?;
//!     let revision = ipcache.upsert(pod, Source::Local, "endpoint/7", Mapping::identity(5));
//!     ipcache.applied(revision, &[pod]).await?; // the kernel has it
//!     ipcache.delete(pod, Source::Local, "endpoint/7");
//!     Ok(())
//! }
//! ```
//!
//! **Differences from Cilium.** Every source's word is kept, not only the winner's: when the most believed one takes
//! its word back, the next one counts at once. A claim belongs to a resource, so that a late deletion of an address's
//! former owner does not take it from the present one.

mod cell;
mod entry;
mod kernel;
mod reconcile;
mod rest;
pub mod restore;
mod seeds;
mod source;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod writer;

pub use cell::cell;
pub use entry::{Claim, Entry, Mapping, Pod};
pub use reconcile::IpcacheMap;
pub use seeds::{Host, seeds};
pub use source::Source;
pub use writer::{Change, IpcacheWriter, NotApplied};
