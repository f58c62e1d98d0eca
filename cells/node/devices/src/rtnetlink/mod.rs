//! Requests to rtnetlink: links, addresses, routes, rules, neighbours.
//!
//! [`Netlink`] is a blocking handle for the network namespace of the thread that opened it. A request costs tens of
//! microseconds, but the deletion of a link 16 to 30 ms. Async code uses [`call`].
//!
//! ```no_run
//! # async fn example() -> Result<(), devices::NetlinkError> {
//! use devices::rtnetlink::{self, LinkChange};
//! let index = rtnetlink::call(|nl| {
//!     let link = nl.link_by_name("eth0")?;
//!     nl.change_link(link.index, &LinkChange { up: Some(true), ..LinkChange::default() })?;
//!     Ok(link.index)
//! })
//! .await?;
//! # let _ = index; Ok(()) }
//! ```

mod address;
mod ipip;
mod link;
mod neighbor;
mod route;
mod rule;
mod segments;
mod socket;
mod tunnel;
mod vlan;

pub use address::AddressSpec;
pub use ipip::IpipKind;
pub(crate) use link::all_links;
pub use link::{LinkChange, VethPeer, VethSpec};
pub use neighbor::{NeighborSpec, neighbor_message};
pub use route::RouteSpec;
pub use rule::Rule;
pub use segments::{LinkSegments, SegmentSizes};
pub use socket::Netlink;
pub(crate) use socket::decode;
pub use tunnel::{TunnelKind, TunnelLink, TunnelSpec};

use crate::NetlinkError;

/// Runs `work` with a new handle on a blocking thread.
pub async fn call<T: Send + 'static>(
    work: impl FnOnce(&mut Netlink) -> Result<T, NetlinkError> + Send + 'static,
) -> Result<T, NetlinkError> {
    hive::blocking(|| work(&mut Netlink::open()?)).await
}
