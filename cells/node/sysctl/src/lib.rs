//! Kernel settings that other cells request, kept in force by a reconciler.
//!
//! **Owns** table `sysctl`: the requested settings, each with its status.
//! **Needs** procfs (`--procfs`), writable for the settings that differ.
//! **Provides** [`Sysctl`], which requests settings and waits for them.
//!
//! **Life.** A setting is written when it is requested and differs, retried after failures, and compared with the
//! kernel every half an hour. Nothing is reset at the stop.
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
//!     }).add();
//! }
//!
//! hive::validate([statedb::cell(), sysctl::cell(), invoke(prepare)]).unwrap();
//! ```
//!
//! **Differences from Cilium.** A failure of a setting with `IgnoreErr` is reported in its status and retried; in
//! Cilium it counts as done.

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
