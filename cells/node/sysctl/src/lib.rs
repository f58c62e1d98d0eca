//! Kernel settings that other cells ask for, kept by a reconciler.
//!
//! **Owns** table `sysctl`: the settings that are wanted, each with its status.
//! **Needs** procfs (`--procfs`), writable for the settings that differ.
//! **Provides** [`Sysctl`], to ask for settings and to wait for them.
//!
//! **Life.** A setting is written when it is asked for and differs, again after failures, and is looked after every
//! half an hour. Nothing is put back at the stop.
//!
//! ```
//! use std::sync::Arc;
//!
//! use hive::prelude::*;
//! use sysctl::{Name, Setting, Sysctl};
//!
//! fn prepare(sysctl: Arc<Sysctl>, lifecycle: Lifecycle) {
//!     lifecycle.hook("prepare").on_start(move |_| async move {
//!         sysctl
//!             .apply(vec![
//!                 Setting::new("net.ipv4.ip_forward".parse()?, 1),
//!                 Setting::new("kernel.timer_migration".parse()?, 0).optional(),
//!                 Setting::new(Name::new(["net", "ipv4", "conf", "eth0.7", "rp_filter"])?, 0),
//!             ])
//!             .await?;
//!         Ok(())
//!     });
//! }
//!
//! hive::validate([statedb::cell(), sysctl::cell(), invoke(prepare)]).unwrap();
//! ```
//!
//! **Differences from Cilium.** A failure of a setting with `IgnoreErr` is shown in its status and tried again; there
//! it counts as done.

mod cell;
mod error;
mod files;
mod handle;
mod health;
mod name;
mod setting;

pub use cell::{SysctlConfig, cell};
pub use error::Error;
pub use handle::Sysctl;
pub use name::Name;
pub use setting::Setting;
