//! How packets travel between nodes: by a tunnel or by the network's own routes.
//!
//! **Owns** the options of the tunnel, of the MTU and of routes to pods ([`EndpointRoutesConfig`]). **Needs** the enabled
//! families. **Provides** [`Tunnel`], the options as one value, and the MTU of devices and routes ([`MtuConfig`]).
//!
//! Pods with IPv6 addresses have an MTU of at least 1280, others one that leaves 68 bytes behind the headers of the tunnel:
//! option `mtu` is refused otherwise, as are values larger than the kernel's devices can; devices of the network with
//! less are reported ([`UnfitDevice`]) and leave pods at the minimum.
//!
//! ```
//! use std::sync::Arc;
//!
//! use hive::prelude::*;
//! use tunnel::Tunnel;
//!
//! fn user(tunnel: Arc<Tunnel>, health: Health) {
//!     health.ok(format!("{} bytes of overhead", tunnel.overhead()));
//! }
//!
//! hive::validate([config::<maps::FamilyConfig>(), tunnel::cell(), invoke(user)]).unwrap();
//! ```

#![forbid(unsafe_code)]

mod cell;
mod config;
mod error;
mod model;
mod mtu;

pub use cell::cell;
pub use config::{EndpointRoutesConfig, TunnelConfig, UnderlayProtocol};
pub use error::Error;
pub use model::{Family, Protocol, RoutingMode, SourcePorts, Tunnel};
pub use mtu::{MtuConfig, UnfitDevice};
