//! Links, addresses, routes and neighbours of the node as live tables.
mod apply;
mod device;
mod error;
mod event;
mod monitor;
mod neighbor;
pub mod netlink;
mod node_address;
mod route;
mod select;
mod tables;

pub use device::{Device, DeviceAddress, HOST_DEVICE, HardwareAddr, Link};
pub use error::NetlinkError;
pub use neighbor::Neighbor;
pub use netlink::Netlink;
pub use node_address::{NodeAddress, NodeAddressRules, WILDCARD_DEVICE, node_addresses};
pub use route::{Route, RouteKey, SCOPE_HOST, SCOPE_LINK, TABLE_LOCAL, TABLE_MAIN};
pub use select::{DeviceRoutes, Selection};
pub use tables::MappedIp;
