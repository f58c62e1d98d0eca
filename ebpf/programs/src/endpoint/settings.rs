//! Settings of endpoints.

use crate::maps::{ep_by_ifindex, ep_by_ifindex_hi, ep_config};
use datapath_abi::{EP_CONFIG_ENTRIES, EndpointConfig, ep_flag};

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
