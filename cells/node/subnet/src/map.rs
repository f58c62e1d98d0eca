//! The map `cilium_subnet_map`.

use std::collections::HashMap;

use bpf::Map;
use datapath_abi::SubnetKey;
use ipnetwork::IpNetwork;
use maps::Maps;

use crate::SubnetIdentity;

pub(crate) const NAME: &str = "cilium_subnet_map";

/// The result of [`write()`].
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// The number of entries.
    pub(crate) entries: usize,
    /// The prefixes of entries that were added, changed or deleted.
    pub(crate) changed: Vec<String>,
}

/// Makes the map equal to the rows. The map does not exist in other modes of routing.
pub(crate) fn write(maps: &Maps, rows: impl Iterator<Item = SubnetIdentity>) -> maps::Result<Written> {
    let Some(map) = open(maps)? else { return Ok(Written::default()) };
    let desired: HashMap<SubnetKey, u32> =
        rows.map(|row| (SubnetKey::new(row.prefix.network(), row.prefix.prefix()), row.identity)).collect();
    let found: HashMap<SubnetKey, u32> = map.entries()?.into_iter().collect();
    let stale: Vec<SubnetKey> = found.keys().filter(|key| !desired.contains_key(key)).copied().collect();
    let changed: Vec<(SubnetKey, u32)> = desired
        .iter()
        .filter(|(key, group)| found.get(key) != Some(group))
        .map(|(key, group)| (*key, *group))
        .collect();
    // First, so that a full map has room; packets of a subnet without an entry take the tunnel.
    map.delete_batch(&stale)?;
    map.update_batch(&changed)?;
    let text = |key: &SubnetKey| prefix(key).map(|prefix| prefix.to_string());
    let changed = stale.iter().chain(changed.iter().map(|(key, _)| key)).filter_map(text).collect();
    Ok(Written { entries: desired.len(), changed })
}

/// Returns the entries, by prefix.
pub(crate) fn entries(maps: &Maps) -> maps::Result<Vec<(IpNetwork, u32)>> {
    let Some(map) = open(maps)? else { return Ok(Vec::new()) };
    Ok(map.entries()?.into_iter().filter_map(|(key, group)| Some((prefix(&key)?, group))).collect())
}

fn prefix(key: &SubnetKey) -> Option<IpNetwork> {
    IpNetwork::new(key.ip()?, u8::try_from(key.bits()).ok()?).ok()
}

fn open(maps: &Maps) -> maps::Result<Option<Map<SubnetKey, u32>>> {
    Ok(maps.shared(NAME)?.map(Map::new).transpose()?)
}
