//! Endpoints and identities: lookups by interface, id and address, and delivery.
//!
//! Owns: entries of endpoints (here, and their settings), identities of addresses ([`ipcache`]) and their subnets, and the last step of a packet to a pod or
//! the host's stack ([`deliver`]) or a proxy's socket ([`proxy`]). Uses `maps`, `monitor` and `packet`.

#[cfg(not(feature = "xdp"))]
pub(crate) mod deliver;
pub(crate) mod ipcache;
#[cfg(not(feature = "xdp"))]
pub(crate) mod proxy;
#[cfg(not(feature = "xdp"))]
mod settings;
#[cfg(not(feature = "xdp"))]
pub(crate) mod subnet;

use crate::maps::cilium_lxc;
use crate::packet::family::Family;
use datapath_abi::{EndpointInfo, EndpointKey};
#[cfg(not(feature = "xdp"))]
pub(crate) use settings::{by_id, by_ifindex, host};

/// Returns the local endpoint with an address, if it is on this node.
#[inline(always)]
pub(crate) fn local<F: Family>(address: F::Address) -> Option<&'static EndpointInfo> {
    cilium_lxc.get(&EndpointKey { address: F::words(address), family: F::NUMBER, key: 0, cluster_id: 0 })
}
