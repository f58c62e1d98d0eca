//! Links, addresses, routes and neighbours of the node as live tables.
//!
//! **Owns** the tables `devices`, `routes`, `neighbors` and `node-addresses` of the network namespace that the agent
//! is started in, and of no other.
//! **Needs** a [`statedb::Db`]; the kernel by rtnetlink.
//! **Provides** `Arc<Table<..>>` of [`Device`], [`Route`], [`Neighbor`] and [`NodeAddress`], and requests to the kernel
//! in [`rtnetlink`].
//!
//! **Life.** The start hook lists everything, so that the tables are complete for the hooks of cells that need them. Then
//! notifications of one socket are applied in batches, a few milliseconds after they arrive. When the socket overflows,
//! and every five minutes, everything is listed again and only differences are written.
//!
//! ```
//! use std::sync::Arc;
//!
//! use devices::Device;
//! use hive::prelude::*;
//! use statedb::{Db, Table};
//!
//! fn attach(devices: Arc<Table<Device>>, jobs: JobGroup) {
//!     jobs.one_shot("attach", move |_| async move {
//!         let snapshot = devices.snapshot();
//!         let (selected, watch) = devices.list_watch(&snapshot, Device::by_selected(true));
//!         for device in selected {
//!             println!("{} {}", device.index, device.name);
//!         }
//!         watch.changed().await; // and again
//!         Ok(())
//!     }).add();
//! }
//!
//! let cells = [provide(|| Arc::new(Db::new())), devices::cell(), invoke(attach)];
//! hive::validate(cells).unwrap();
//! ```
//!
//! **Selected devices** are those that option `devices` names, in whatever state; without it, those that are up, have an address and a route to a
//! global unicast address, are not a bridge or part of a bridge or bond, and have none of the excluded prefixes (`cilium_`,
//! `lo`, `lxc`, `cni`, `docker`); a veth needs a default route. The row of a device that is not selected has the reason.
//!
//! **Differences from Cilium.** A route with several next hops is a row for each of its links. Routes that the kernel
//! removes without a notification (IPv4 on a link that goes down, replaced ones) are removed from the table, too. Changes
//! are visible after 2 ms instead of 100 ms.

mod apply;
mod cell;
mod config;
mod controller;
mod device;
mod error;
mod event;
mod monitor;
mod neighbor;
mod node_address;
mod route;
pub mod rtnetlink;
mod select;
mod tables;

pub use cell::cell;
pub use config::{DevicesConfig, NodeAddressConfig};
pub use device::{Device, DeviceAddress, HOST_DEVICE, HardwareAddr, Link};
pub use error::NetlinkError;
pub use neighbor::Neighbor;
pub use node_address::{NodeAddress, NodeAddressRules, WILDCARD_DEVICE, node_addresses};
pub use route::{
    Route, RouteKey, SCOPE_HOST, SCOPE_LINK, TABLE_LOCAL, TABLE_MAIN, kind_name, scope_name, table_name,
};
pub use rtnetlink::Netlink;
pub use select::{DeviceRoutes, Selection};
pub use tables::MappedIp;
