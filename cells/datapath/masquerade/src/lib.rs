//! Which packets of pods get the node's address when they leave the cluster, and where: by the programs of the datapath
//! (`enable-bpf-masquerade`) or by iptables.
//!
//! **Owns** the options of masquerading. **Provides** [`MasqueradeConfig`] to `iptables` and `loader`.

#![forbid(unsafe_code)]

mod cell;
mod config;

pub use cell::cell;
pub use config::MasqueradeConfig;
