//! The identities of addresses: a table and its mirror in the kernel.
//!
//! **Owns** the table `ipcache` and the entries of the pinned map `cilium_ipcache_v2`.
//! **Needs** the maps, the node's row and addresses.
//! **Provides** [`IpcacheWriter`] to the sources, the table to readers, `GET /ip`.
//!
//! **Life.** Map entries of the previous run are read at start and stay, as claims of the [`Source`] with the lowest priority,
//! until every source registered with [`IpcacheWriter::register`] is complete; then entries without another claim are
//! deleted. The host's addresses and the world are the cell's own claims.
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
//! **Differences from Cilium.** The claims of all sources are kept, not only the winner's: when the winner is deleted, the next
//! one takes effect at once. A claim belongs to a resource, so that a late deletion by an address's former owner does not
//! affect the current one. Claims of the API server's addresses give way to those of nodes, which have its label in their own
//! identities then, and of pods.

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
pub use entry::{Claim, Entry, Location, Mapping, Pod};
pub use reconcile::IpcacheMap;
pub use seeds::{Host, seeds};
pub use source::Source;
pub use writer::{Change, IpcacheWriter, NotApplied};
