//! Addresses for endpoints from the node's pod ranges.
//!
//! **Owns** the table `ipam`: who has which address, on what terms, and which addresses rest after their release.
//! **Needs** the node's row (pod ranges), and what other cells remember of the previous run ([`Restored`]).
//! **Provides** the handle [`Ipam`], the router's addresses in the node's row, `POST /ipam`, `POST` and `DELETE
//! /ipam/{ip}`, the `ipam` part of `/healthz` ([`Ipam::status`]).
//!
//! **Life.** At start addresses of restored endpoints are reserved first, then the router's: the previous run's if it
//! is free, else a new one. An address given with `expiration: true` goes back after ten minutes unless the endpoint
//! that uses it shows its token. There is no file: the endpoints' records are the memory.
//!
//! ```
//! use ipam::{Ipam, Node};
//!
//! let table = statedb::Db::new().table()?;
//! let node = Node { ipv4_range: Some("10.244.0.0/24".parse()?), ..Node::default() };
//! let ipam = Ipam::new(table, move || node.clone());
//! let given = ipam.allocate("default/web", None, false)?;
//! assert_eq!(given.len(), 1, "one of each family that is on");
//! ipam.release(given[0].address, "default")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Differences from Cilium.** A released address is given again only after 30 s, or when there is no other; the
//! first address of a range is not probed in order but at random, as there. An address in use by an endpoint does not
//! expire even if the endpoint's request came without the token.

mod address;
mod cell;
mod error;
mod handle;
mod ledger;
mod metrics;
mod range;
mod rest;

pub use address::{Address, DEFAULT_POOL, Lease};
pub use cell::{Restored, RestoredAddress, cell};
pub use error::Error;
pub use handle::{Ipam, Node};
pub use ledger::Ranges;
pub use range::{Family, PodRange};
