//! The maps of ranges.

use std::collections::{BTreeSet, HashSet};
use std::hash::Hash;

use datapath_abi::{IpMasqKey, IpMasqKey4, IpMasqKey6, Pod, ipv4_word, ipv6_words};
use ipnetwork::IpNetwork;
use maps::Maps;

/// The families of which the programs masquerade.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Families {
    pub(crate) ipv4: bool,
    pub(crate) ipv6: bool,
}

/// Makes the maps of these families equal to the ranges: adds missing ones, then deletes others, so that a range that
/// replaces another is never missing.
pub(super) fn write(maps: &Maps, families: Families, ranges: &BTreeSet<IpNetwork>) -> maps::Result<()> {
    if families.ipv4 {
        let keys = ranges.iter().filter_map(|range| match range {
            IpNetwork::V4(range) => {
                let prefixlen = range.prefix().into();
                Some(IpMasqKey4 { prefixlen, address: ipv4_word(range.network()) })
            }
            IpNetwork::V6(_) => None,
        });
        write_map(maps, "cilium_ipmasq_v4", &keys.collect())?;
    }
    if families.ipv6 {
        let keys = ranges.iter().filter_map(|range| match range {
            IpNetwork::V6(range) => {
                let prefixlen = range.prefix().into();
                Some(IpMasqKey6 { prefixlen, address: ipv6_words(range.network()) })
            }
            IpNetwork::V4(_) => None,
        });
        write_map(maps, "cilium_ipmasq_v6", &keys.collect())?;
    }
    Ok(())
}

fn write_map<A: Copy + Eq + Hash>(
    maps: &Maps,
    name: &str,
    desired: &HashSet<IpMasqKey<A>>,
) -> maps::Result<()>
where
    IpMasqKey<A>: Pod,
{
    let Some(map) = maps.shared(name)? else { return Ok(()) };
    let map: bpf::Map<IpMasqKey<A>, u8> = bpf::Map::new(map)?;
    let found: HashSet<IpMasqKey<A>> = map.keys()?.into_iter().collect();
    let missing: Vec<_> = desired.difference(&found).map(|key| (*key, 0)).collect();
    let stale: Vec<_> = found.difference(desired).copied().collect();
    // A full map has room for the new ranges only without the old ones.
    if found.len() + missing.len() > map.raw().layout().max_entries as usize {
        map.delete_batch(&stale)?;
        map.update_batch(&missing)?;
    } else {
        map.update_batch(&missing)?;
        map.delete_batch(&stale)?;
    }
    Ok(())
}
