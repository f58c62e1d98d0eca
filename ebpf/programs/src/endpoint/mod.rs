//! Endpoints and identities: lookups by interface, id and address, and delivery.
//!
//! Owns: rows of endpoints (here), identities of addresses ([`ipcache`]), and the last step of a packet to a pod or to the
//! host's stack ([`deliver`]). Uses `maps`, `monitor` and `packet`.

pub(crate) mod deliver;
pub(crate) mod ipcache;

use crate::maps::{cilium_lxc, ep_by_ifindex, ep_by_ifindex_hi, ep_config};
use crate::packet::family::Family;
use datapath_abi::{EP_CONFIG_ENTRIES, EndpointConfig, EndpointInfo, EndpointKey, ep_flag};

/// The endpoint behind a pod's host-side interface.
#[inline(always)]
pub(crate) fn by_ifindex(ifindex: u32) -> Option<&'static EndpointConfig> {
    let id = if ifindex < EP_CONFIG_ENTRIES {
        ep_by_ifindex.get(&ifindex)
    } else {
        ep_by_ifindex_hi.get(&ifindex)
    };
    let endpoint = by_id(*id?)?;
    // The row of an endpoint that has another interface by now is not ours.
    if endpoint.ifindex == ifindex { Some(endpoint) } else { None }
}

/// The endpoint with an id.
#[inline(always)]
pub(crate) fn by_id(id: u32) -> Option<&'static EndpointConfig> {
    let endpoint = ep_config.get(&id)?;
    if endpoint.flags & ep_flag::LIVE != 0 { Some(endpoint) } else { None }
}

/// Where an address lives on this node, if it does.
#[inline(always)]
pub(crate) fn local<F: Family>(address: F::Address) -> Option<&'static EndpointInfo> {
    cilium_lxc.get(&EndpointKey { address: F::words(address), family: F::NUMBER, key: 0, cluster_id: 0 })
}
