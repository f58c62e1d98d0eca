//! Keeps the ports of NodePort services (`node-port-range`) out of the kernel's choice of source ports.
//!
//! With `kube-proxy-replacement` packets to these ports belong to services: a connection of the node from such a port would
//! lose its replies. **Owns** the part of `net.ipv4.ip_local_reserved_ports` that it has added, recorded in
//! `node-port-range.json` of the state folder, and the option `enable-auto-protect-node-port-range`. **Needs** procfs
//! (`--procfs`), writable where the two ranges overlap.
//!
//! **Life.** The agent refuses to start if the range lies behind that of the source ports
//! (`net.ipv4.ip_local_port_range`), or if the two overlap in ports that are not reserved and the option is off. Otherwise a
//! job reserves the range, and compares it with the kernel every half an hour. Reservations of others stay. Ports that the
//! agent has added are released when the range changes, and by the first start without `kube-proxy-replacement`.
//!
//! **Differences from Cilium.** Cilium releases nothing, and writes the list that it has read: a reservation that another
//! process makes between the two is lost. Here the kernel adds the range to its list in one step.

mod cell;
mod config;
mod error;
mod files;
mod plan;
mod ports;
mod record;

pub use cell::cell;
pub use config::PortRangeConfig;
pub use error::Error;
