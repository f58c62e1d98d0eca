//! The host's side: `cilium_host` and `cilium_net`, the devices of the tunnel and of outer headers, programs on devices, addresses, kernel settings.
//!
//! Sibling folders that it uses: `endpoints`, `guard`, `programs`.

pub(crate) mod acceleration;
pub(crate) mod controller;
pub(crate) mod desired;
pub mod device_links;
pub mod host;
pub(crate) mod ipip;
pub(crate) mod sysctls;
pub mod tunnel;
pub(crate) mod xdp_links;
