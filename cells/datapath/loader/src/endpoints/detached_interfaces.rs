//! Pods' interfaces that disappeared while their endpoint exists: deleted, or moved into another namespace.
//!
//! The kernel may reuse an index a moment later, so packets from that index must not be attributed to the endpoint any
//! more, not even after a restart. An interface that comes back unchanged is the endpoint's again.

use datapath_abi::{EndpointConfig, ep_flag, mac_from_word};
use datapath_api::{DatapathError, Step};
use devices::{Link, Netlink};

use crate::endpoints::table::EndpointTable;

/// Handles the deletion of an interface, or its replacement by another one with that index. Returns the endpoint of
/// that interface, which is not live any more.
pub(crate) fn interface_gone(
    table: &EndpointTable,
    nl: &mut Netlink,
    ifindex: u32,
) -> Result<Option<u16>, DatapathError> {
    let Some(id) = table.id_at(ifindex)?.and_then(|id| u16::try_from(id).ok()) else {
        return Ok(None);
    };
    let endpoint = table.lock(id);
    let config = endpoint.config();
    // The event may be older than an endpoint that was created on the next interface with that index.
    let next = match nl.link_by_index(ifindex) {
        Err(error) if error.is_not_found() => None,
        link => Some(link?),
    };
    if config.ifindex != ifindex || next.is_some_and(|link| may_be_of(&config, &link)) {
        return Ok(None);
    }
    endpoint.detach_interface(&config)?;
    Ok(Some(id))
}

/// Handles the appearance of an interface. Returns the endpoint that had it before it disappeared, which is live again.
pub(crate) fn interface_back(table: &EndpointTable, link: &Link) -> Result<Option<u16>, DatapathError> {
    let Some(id) = table.detached_from(link.index) else { return Ok(None) };
    let endpoint = table.lock(id);
    let config = endpoint.config();
    if config.id != u32::from(id) || config.ifindex != link.index || !is_of(&config, link) {
        return Ok(None);
    }
    endpoint.forget_detached();
    let config = EndpointConfig { flags: config.flags | ep_flag::LIVE, ..config };
    endpoint.write_config(&config).step(|| format!("endpoint {id}: its interface is back"))?;
    endpoint.write_interface(link.index)?;
    Ok(Some(id))
}

/// Whether the link has the address of the endpoint's interface.
fn is_of(config: &EndpointConfig, link: &Link) -> bool {
    config.node_mac != 0 && link.hardware_addr.octets() == mac_from_word(config.node_mac)
}

/// Whether the link may be the endpoint's interface: its address is compared only if it is known.
fn may_be_of(config: &EndpointConfig, link: &Link) -> bool {
    config.node_mac == 0 || is_of(config, link)
}
