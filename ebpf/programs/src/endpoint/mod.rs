//! Endpoints and identities: lookups by interface, id and address, and delivery.
//!
//! Owns: entries of endpoints (here), identities of addresses ([`ipcache`]), and the last step of a packet to a pod or
//! the host's stack ([`deliver`]). Uses `maps`, `monitor` and `packet`.

pub(crate) mod deliver;
pub(crate) mod ipcache;

use crate::maps::{cilium_lxc, ep_by_ifindex, ep_by_ifindex_hi, ep_config};
use crate::packet::family::Family;
use datapath_abi::{EP_CONFIG_ENTRIES, EndpointConfig, EndpointInfo, EndpointKey, ep_flag};

/// Returns the endpoint of a pod's host-side interface.
#[inline(always)]
pub(crate) fn by_ifindex(ifindex: u32) -> Option<&'static EndpointConfig> {
    let id = if ifindex < EP_CONFIG_ENTRIES {
        ep_by_ifindex.get(&ifindex)
    } else {
        ep_by_ifindex_hi.get(&ifindex)
    };
    let endpoint = by_id(*id?)?;
    // A stale index may lead to an endpoint that has another interface by now.
    if endpoint.ifindex == ifindex { Some(endpoint) } else { None }
}

/// Returns the endpoint with an id.
#[inline(always)]
pub(crate) fn by_id(id: u32) -> Option<&'static EndpointConfig> {
    let endpoint = ep_config.get(&id)?;
    if endpoint.flags & ep_flag::LIVE != 0 { Some(endpoint) } else { None }
}

/// Returns the settings of the host's endpoint; `None` before it exists.
#[inline(always)]
pub(crate) fn host() -> Option<&'static EndpointConfig> {
    let endpoint = ep_config.get(&node!(host_endpoint_id))?;
    if endpoint.id != 0 { Some(endpoint) } else { None }
}

/// Returns the local endpoint with an address, if it is on this node.
#[inline(always)]
pub(crate) fn local<F: Family>(address: F::Address) -> Option<&'static EndpointInfo> {
    cilium_lxc.get(&EndpointKey { address: F::words(address), family: F::NUMBER, key: 0, cluster_id: 0 })
}
