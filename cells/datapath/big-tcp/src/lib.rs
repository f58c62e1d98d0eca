//! BIG TCP: segments of more than 64 KiB between pods, and between pods and the devices of the node.
//!
//! **Owns** options `enable-ipv4-big-tcp` and `enable-ipv6-big-tcp`; the maximum sizes of segments (GSO and GRO) of the
//! devices that face the network, of `cilium_host`, `cilium_net` and of the tunnel's device. **Needs** the table
//! `devices`, [`Tunnel`](tunnel::Tunnel), the options of masquerading. **Provides** [`BigTcp`], the sizes for interfaces of pods,
//! which the CNI plugin gets by `GET /config`; the part of `GET /healthz`.
//!
//! **Life.** The start refuses options that segments of this size contradict, and probes the kernel: a family that it does
//! not support is off, with a warning. The sizes are set before the agent serves its API, and again when devices come or
//! go. The one size for sending is the smallest that the drivers of the devices can. When a device refuses its sizes,
//! all are as before, both families are off, and health names the device. With the options off, larger sizes of a
//! previous run are lowered to 64 KiB; smaller ones of the administrator stay.
//!
//! Interfaces of running pods keep their sizes, as in Cilium.
//!
//! ```
//! use std::sync::Arc;
//!
//! use big_tcp::BigTcp;
//! use hive::prelude::*;
//!
//! fn user(sizes: Arc<BigTcp>, health: Health) {
//!     health.ok(format!("{} bytes", sizes.limits().ipv4.gso));
//! }
//!
//! let options = config::<maps::FamilyConfig>();
//! let cells = [devices::cell(), options, tunnel::cell(), masquerade::cell(), big_tcp::cell(), invoke(user)];
//! hive::validate([statedb::cell(), bundle(cells)]).unwrap();
//! ```
//!
//! **Differences from Cilium.** Devices that appear later get the sizes as well, and change that of pods.

#![forbid(unsafe_code)]

mod cell;
mod check;
mod config;
mod error;
mod job;
mod limits;

pub use cell::cell;
pub use config::BigTcpConfig;
pub use error::Error;
pub use limits::{BigTcp, Limits};
