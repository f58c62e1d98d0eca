//! Drift of endpoints' map entries: entries that another process has changed or removed are detected and rewritten.
//!
//! The settings entries as they were written last are compared entry by entry with the maps that programs read: by an
//! endpoint's id, by its interface and by its addresses. Settings entries of unused ids are not compared, as no other
//! map refers to them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use datapath_abi::{EP_CONFIG_ENTRIES, EndpointConfig, EndpointInfo, EndpointKey, ep_flag, lxc_flag};
use datapath_api::{DatapathError, EndpointDatapath, Step};
use devices::Link;

use crate::endpoints::table::EndpointTable;

/// Returns the description of an entry of `cilium_lxc`.
pub(crate) fn address(key: &EndpointKey) -> String {
    let ip = key.ip().map_or_else(|| "an address of no family".to_owned(), |ip| ip.to_string());
    format!("cilium_lxc: {ip}")
}

/// Rewrites entries that differ from the desired ones, and removes entries without an owner. Returns descriptions of
/// both.
pub(crate) fn repair(table: &EndpointTable, links: &[Link]) -> Result<Vec<String>, DatapathError> {
    let maps = table.maps();
    let ids: BTreeMap<u32, u32> =
        maps.ep_ids().entries().step(|| "list the endpoints".to_owned())?.into_iter().collect();
    let lxc = maps.lxc().entries().step(|| "list the endpoints' addresses".to_owned())?;
    let by_address: HashMap<EndpointKey, EndpointInfo> = lxc.iter().copied().collect();
    let mut repaired = Vec::new();
    for config in table.all() {
        let listed = ids.get(&config.id) == Some(&config.policy_slot);
        let addressed = own_addresses(&config).iter().all(|(key, info)| by_address.get(key) == Some(info));
        if !listed || !addressed || !is_written(table, &config)? {
            repaired.extend(repair_endpoint(table, config.id as u16)?);
        }
    }
    repaired.extend(remove_unowned(table, links, &ids, &lxc)?);
    Ok(repaired)
}

/// Whether the settings entry and the entry of the interface are as they were written.
fn is_written(table: &EndpointTable, config: &EndpointConfig) -> Result<bool, DatapathError> {
    let found = table.maps().ep_config().lookup(&config.id);
    let found = found.step(|| format!("endpoint {}: read settings", config.id))?;
    Ok(found.as_ref() == Some(config)
        && (!is_live(config) || table.id_at(config.ifindex)? == Some(config.id)))
}

/// Compares all entries of an endpoint under its lock and writes those that differ. Returns their descriptions.
fn repair_endpoint(table: &EndpointTable, id: u16) -> Result<Vec<String>, DatapathError> {
    let endpoint = table.lock(id);
    // It may have been deleted or changed since the comparison without the lock.
    let config = endpoint.config();
    let mut repaired = Vec::new();
    if config.id == 0 {
        return Ok(repaired);
    }
    let (maps, step) = (table.maps(), || format!("endpoint {id}: compare its rows"));
    if maps.ep_ids().lookup(&config.id).step(step)? != Some(config.policy_slot) {
        endpoint.write_id(config.policy_slot)?;
        repaired.push(format!("ep_ids: endpoint {id}"));
    }
    if maps.ep_config().lookup(&config.id).step(step)? != Some(config) {
        endpoint.write_config(&config).step(step)?;
        repaired.push(format!("ep_config: endpoint {id}"));
    }
    if is_live(&config) && table.id_at(config.ifindex)? != Some(config.id) {
        endpoint.write_interface(config.ifindex)?;
        repaired.push(format!("ep_by_ifindex: interface {} of endpoint {id}", config.ifindex));
    }
    for (key, info) in own_addresses(&config) {
        if maps.lxc().lookup(&key).step(step)? != Some(info) {
            maps.lxc().update(&key, &info).step(step)?;
            repaired.push(format!("{} of endpoint {id}", address(&key)));
        }
    }
    Ok(repaired)
}

/// Removes entries that refer to endpoints which do not exist or have another interface or address. Returns their
/// descriptions.
fn remove_unowned(
    table: &EndpointTable,
    links: &[Link],
    ids: &BTreeMap<u32, u32>,
    lxc: &[(EndpointKey, EndpointInfo)],
) -> Result<Vec<String>, DatapathError> {
    let (maps, mut removed) = (table.maps(), Vec::new());
    for key in ids.keys() {
        let step = || format!("endpoint {key}: forget its id");
        let unowned = match u16::try_from(*key) {
            Ok(id) => {
                let endpoint = table.lock(id);
                endpoint.config().id == 0 && endpoint.remove_id().step(step)?
            }
            // No endpoint has such an id.
            Err(_) => maps.ep_ids().delete(key).step(step)?,
        };
        if unowned {
            removed.push(format!("ep_ids: endpoint {key}"));
        }
    }
    // The host's own entries are compared by the controller of the host's side.
    for (key, info) in lxc.iter().filter(|(_, info)| info.flags & lxc_flag::HOST == 0) {
        let step = || "remove an address without an endpoint".to_owned();
        let endpoint = table.lock(info.lxc_id);
        let owned = EndpointDatapath::from_config(&endpoint.config()).lxc_rows();
        if !owned.iter().any(|(own, _)| own == key) && maps.lxc().lookup(key).step(step)? == Some(*info) {
            maps.lxc().delete(key).step(step)?;
            removed.push(address(key));
        }
    }
    let step = || "list interfaces of endpoints".to_owned();
    let high: BTreeSet<u32> = maps.ep_by_ifindex_hi().keys().step(step)?.into_iter().collect();
    // In the array, only entries of existing interfaces are compared: no packets come from the others.
    let low = links.iter().map(|link| link.index).filter(|index| *index < EP_CONFIG_ENTRIES);
    for ifindex in low.chain(high) {
        let Some(found) = table.id_at(ifindex)? else { continue };
        let endpoint = table.lock(found as u16);
        let config = if u32::from(endpoint.id()) == found { endpoint.config() } else { Default::default() };
        if (!is_live(&config) || config.ifindex != ifindex) && table.id_at(ifindex)? == Some(found) {
            table.clear_interface(ifindex).step(|| format!("remove interface {ifindex}"))?;
            removed.push(format!("ep_by_ifindex: interface {ifindex}"));
        }
    }
    Ok(removed)
}

fn is_live(config: &EndpointConfig) -> bool {
    config.flags & ep_flag::LIVE != 0
}

/// Returns the entries that `cilium_lxc` must have of an endpoint; none while its interface is detached, when they may
/// exist or not.
fn own_addresses(config: &EndpointConfig) -> Vec<(EndpointKey, EndpointInfo)> {
    if is_live(config) { EndpointDatapath::from_config(config).lxc_rows() } else { Vec::new() }
}
