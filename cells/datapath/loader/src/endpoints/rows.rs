//! Rows of endpoints that others have changed or removed: compared with the settings rows as they were written last.
//!
//! What programs find by an endpoint's number or interface, and what leads to it, is looked at row by row. Settings rows
//! of numbers that no endpoint has are not looked for: nothing leads to them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use datapath_abi::{EP_CONFIG_ENTRIES, EndpointConfig, EndpointInfo, EndpointKey, ep_flag, lxc_flag};
use devices::Link;

use crate::endpoints::kernel::KernelDatapath;
use datapath_api::EndpointDatapath;
use datapath_api::{DatapathError, Step};

/// A row of `cilium_lxc`, in words.
pub(crate) fn address(key: &EndpointKey) -> String {
    let ip = key.ip().map_or_else(|| "an address of no family".to_owned(), |ip| ip.to_string());
    format!("cilium_lxc: {ip}")
}

impl KernelDatapath {
    /// Writes rows of endpoints again that are not as they were written, and removes rows without an owner. Returns all
    /// of them.
    pub fn repair_rows(&self, links: &[Link]) -> Result<Vec<String>, DatapathError> {
        let maps = self.maps();
        let ids: BTreeMap<u32, u32> =
            maps.ep_ids().entries().step(|| "list the endpoints".to_owned())?.into_iter().collect();
        let lxc = maps.lxc().entries().step(|| "list the endpoints' addresses".to_owned())?;
        let by_address: HashMap<EndpointKey, EndpointInfo> = lxc.iter().copied().collect();
        let mut repaired = Vec::new();
        for row in self.rows() {
            let noted = ids.get(&row.id) == Some(&row.policy_slot);
            let addressed = own_addresses(&row).iter().all(|(key, info)| by_address.get(key) == Some(info));
            if !noted || !addressed || !self.is_written(&row)? {
                repaired.extend(self.write_again(row.id as u16)?);
            }
        }
        repaired.extend(self.remove_strangers(links, &ids, &lxc)?);
        Ok(repaired)
    }

    /// Whether the settings row and the row of the interface are as they were written.
    fn is_written(&self, row: &EndpointConfig) -> Result<bool, DatapathError> {
        let found = self.maps().ep_config().lookup(&row.id);
        let found = found.step(|| format!("endpoint {}: read settings", row.id))?;
        Ok(found.as_ref() == Some(row) && (!is_live(row) || self.endpoint_at(row.ifindex)? == Some(row.id)))
    }

    /// Compares all rows of an endpoint while nothing else changes them, and writes those that differ.
    fn write_again(&self, id: u16) -> Result<Vec<String>, DatapathError> {
        let _changing = self.change(id);
        // It may have gone since, or have changed.
        let row = self.row(id);
        let mut repaired = Vec::new();
        if row.id == 0 {
            return Ok(repaired);
        }
        let (maps, step) = (self.maps(), || format!("endpoint {id}: compare its rows"));
        if maps.ep_ids().lookup(&row.id).step(step)? != Some(row.policy_slot) {
            self.note_id(id, row.policy_slot)?;
            repaired.push(format!("ep_ids: endpoint {id}"));
        }
        if maps.ep_config().lookup(&row.id).step(step)? != Some(row) {
            self.write_row(id, &row).step(step)?;
            repaired.push(format!("ep_config: endpoint {id}"));
        }
        if is_live(&row) && self.endpoint_at(row.ifindex)? != Some(row.id) {
            self.write_interface(row.ifindex, id)?;
            repaired.push(format!("ep_by_ifindex: interface {} of endpoint {id}", row.ifindex));
        }
        for (key, info) in own_addresses(&row) {
            if maps.lxc().lookup(&key).step(step)? != Some(info) {
                maps.lxc().update(&key, &info).step(step)?;
                repaired.push(format!("{} of endpoint {id}", address(&key)));
            }
        }
        Ok(repaired)
    }

    /// Removes rows that lead to endpoints which are not there, or not at that place.
    fn remove_strangers(
        &self,
        links: &[Link],
        ids: &BTreeMap<u32, u32>,
        lxc: &[(EndpointKey, EndpointInfo)],
    ) -> Result<Vec<String>, DatapathError> {
        let (maps, mut removed) = (self.maps(), Vec::new());
        for id in ids.keys() {
            let step = || format!("endpoint {id}: forget its id");
            let Ok(number) = u16::try_from(*id) else {
                maps.ep_ids().delete(id).step(step)?;
                removed.push(format!("ep_ids: endpoint {id}"));
                continue;
            };
            let _changing = self.change(number);
            if self.row(number).id == 0 && maps.ep_ids().delete(id).step(step)? {
                removed.push(format!("ep_ids: endpoint {id}"));
            }
        }
        // The host's own rows are looked at with those that are missing.
        for (key, info) in lxc.iter().filter(|(_, info)| info.flags & lxc_flag::HOST == 0) {
            let (id, step) = (info.lxc_id, || "remove an address of nobody".to_owned());
            let _changing = self.change(id);
            let owned = EndpointDatapath::from_config(&self.row(id)).lxc_rows();
            if !owned.iter().any(|(own, _)| own == key) && maps.lxc().lookup(key).step(step)? == Some(*info) {
                maps.lxc().delete(key).step(step)?;
                removed.push(address(key));
            }
        }
        let step = || "list interfaces of endpoints".to_owned();
        let high: BTreeSet<u32> = maps.ep_by_ifindex_hi().keys().step(step)?.into_iter().collect();
        // An interface that does not exist sends nothing.
        let low = links.iter().map(|link| link.index).filter(|index| *index < EP_CONFIG_ENTRIES);
        for ifindex in low.chain(high) {
            let Some(found) = self.endpoint_at(ifindex)? else { continue };
            let _changing = self.change(found as u16);
            let row = u16::try_from(found).map(|id| self.row(id)).unwrap_or_default();
            if (!is_live(&row) || row.ifindex != ifindex) && self.endpoint_at(ifindex)? == Some(found) {
                self.clear_interface(ifindex).step(|| format!("remove interface {ifindex}"))?;
                removed.push(format!("ep_by_ifindex: interface {ifindex}"));
            }
        }
        Ok(removed)
    }
}

fn is_live(row: &EndpointConfig) -> bool {
    row.flags & ep_flag::LIVE != 0
}

/// What `cilium_lxc` must have of an endpoint. One whose interface is away may have its addresses or not.
fn own_addresses(row: &EndpointConfig) -> Vec<(EndpointKey, EndpointInfo)> {
    if is_live(row) { EndpointDatapath::from_config(row).lxc_rows() } else { Vec::new() }
}
