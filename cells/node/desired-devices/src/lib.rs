//! Network devices that cells desire, kept in the kernel by a reconciler.
//!
//! **Owns** table `desired-devices`: the devices of each owner, with their status; the devices of the kernel that it has
//! created, by the log `state/device-reconciler.wal`. **Needs** the table `devices`; the folder of
//! [`StateConfig`](local_node::StateConfig); the kernel by rtnetlink. **Provides** [`DesiredDevices`], by which owners upsert
//! and delete their devices.
//!
//! **Life.** A device is recorded in the log, then created, and set up. One that the previous run has left stays if it is
//! as desired, and is created again if it is not; those that are not desired any more are deleted when all initializers of
//! the table are done. Nothing is removed at the stop. A device that the kernel loses is created again. One with a
//! missing parent waits for it.
//!
//! **Devices of others** are never touched: one of the same name that the log does not have is an error of the row.
//!
//! ```
//! use std::sync::Arc;
//!
//! use desired_devices::{DesiredDevice, DesiredDevices};
//! use hive::prelude::*;
//!
//! fn vlan(devices: Arc<DesiredDevices>, lifecycle: Lifecycle) {
//!     lifecycle.hook("vlan").on_start(move |_| async move {
//!         devices.upsert("storage", DesiredDevice::vlan("stor0", "eth0", 7)?)?;
//!         Ok(())
//!     }).add();
//! }
//!
//! let state = config::<local_node::StateConfig>();
//! hive::validate([statedb::cell(), devices::cell(), state, desired_devices::cell(), invoke(vlan)]).unwrap();
//! ```
//!
//! Devices of the datapath (`cilium_host`, the tunnel's) are not in the table: they are part of what the loader takes over
//! from Cilium and checks as a whole, as in Cilium.
//!
//! **Differences from Cilium.** A device that is deleted by hand is created again.

#![forbid(unsafe_code)]

mod cell;
mod desired;
mod error;
mod handle;
mod kernel;
mod refresh;
mod wal;

pub use cell::cell;
pub use desired::{DesiredDevice, Vlan};
pub use error::Error;
pub use handle::DesiredDevices;
