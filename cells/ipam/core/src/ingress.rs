//! The node's ingress addresses, from which its Envoy reaches backends: those of the previous run if they are free.

use std::net::IpAddr;

use local_node::LocalNodeStore;

use crate::address::DEFAULT_POOL;
use crate::error::Error;
use crate::handle::Ipam;
use crate::range::Family;

/// The owner of the addresses.
const OWNER: &str = "ingress";

/// The option of Envoy configurations, which alone need the addresses; it belongs to their cell.
pub(crate) const OPTION: &str = "enable-envoy-config";

/// Allocates and publishes the addresses of the enabled families that have ranges, or takes those of the previous run
/// back. One that the node has already stays.
pub(crate) fn ensure(ipam: &Ipam, store: &LocalNodeStore, is_on: bool) -> Result<(), Error> {
    let Some(node) = store.node() else { return Ok(()) };
    let before = [node.ingress_ipv4.map(IpAddr::V4), node.ingress_ipv6.map(IpAddr::V6)];
    if !is_on {
        if before.iter().any(Option::is_some) {
            store.update(|node| (node.ingress_ipv4, node.ingress_ipv6) = (None, None));
        }
        return Ok(());
    }
    let (pools, default) = (ipam.pools(), ipam.default_pool());
    for (family, before) in [Family::V4, Family::V6].into_iter().zip(before) {
        if !pools.enabled(family) || !pools.has(&default, family) || ipam.has(OWNER, family) {
            continue;
        }
        // An address outside of all ranges is none that other nodes route to this one.
        let is_free = |address: &IpAddr| {
            pools.pool_of(*address).is_some_and(|pool| *pool == default)
                && ipam.allocate_ip(*address, OWNER, DEFAULT_POOL).is_ok()
        };
        let address = match before.filter(is_free) {
            Some(address) => Some(address),
            None => ipam.allocate(OWNER, Some(family), false)?.first().map(|given| given.address),
        };
        store.update(|node| match address {
            Some(IpAddr::V4(address)) => node.ingress_ipv4 = Some(address),
            Some(IpAddr::V6(address)) => node.ingress_ipv6 = Some(address),
            None => {}
        });
    }
    Ok(())
}
