//! Addresses for endpoints from the node's pod ranges.
//!
//! **Owns** the table `ipam`: addresses with owner and lease, those in quarantine after their release included.
//! **Needs** the node's row (pod ranges), and the addresses of the previous run from other cells ([`Restored`]).
//! **Provides** the handle [`Ipam`], the router's and ingress addresses in the node's row, `POST /ipam`, `POST` and `DELETE
//! /ipam/{ip}`, the `ipam` part of `/healthz` ([`Ipam::status`]).
//!
//! **Life.** At start addresses of restored endpoints are reserved first, then the router's: that of the previous run
//! if it is free, else a new one. With `enable-envoy-config` those of the ingress come next, likewise. An address allocated with `expiration: true` expires after ten minutes unless an
//! endpoint takes it over with its token. There is no file: the endpoints' records have the addresses.
//!
//! **Ranges** are read from the node's row at each request and may change at any time. Without one yet a request fails
//! with the reason, and the router gets its address when the range comes. Of a range that the cluster withdraws
//! addresses stay with their owners; health names these until the last one is gone.
//!
//! **Pools.** Outside of `ipam=multi-pool` there is one, `default`. With it another cell provides a [`Chooser`] and writes the
//! node's pools into its row; a request that a pool cannot serve is passed to the chooser, which requests more of the pool.
//! With `ipam=crd` another cell is the [`PoolSource`] of the one pool, whose addresses are [`Listed`] one by one.
//!
//! ```
//! use ipam::{Ipam, Node};
//!
//! let table = statedb::Db::new().table()?;
//! let node = Node::with_ranges(Some("10.244.0.0/24".parse()?), None);
//! let ipam = Ipam::new(table, move || node.clone());
//! let allocated = ipam.allocate("default/web", None, false)?;
//! assert_eq!(allocated.len(), 1, "one of each family that is on");
//! ipam.release(allocated[0].address, "default")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Differences from Cilium.** A released address is allocated again only after 30 s, or when there is no other. An
//! address in use by an endpoint does not expire even if the endpoint's request came without the token.

mod address;
mod cell;
mod chooser;
mod config;
mod error;
mod handle;
mod ingress;
mod ledger;
mod listed;
mod metrics;
mod pools;
mod range;
mod rest;
mod router;
mod withdrawn;

pub use address::{Address, DEFAULT_POOL, Lease};
pub use cell::{Restored, RestoredAddress, cell};
pub use chooser::{ChoosePool, Chooser};
pub use config::IpamConfig;
pub use error::{Error, Holder};
pub use handle::{Ipam, Node};
pub use listed::{Listed, ListedAddress, ListedBy, NodeOwner, PoolSource};
pub use pools::{Pool, Pools};
pub use range::{Family, PodRange};
