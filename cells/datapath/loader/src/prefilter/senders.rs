//! The listed ranges in the maps: single addresses in a hash, ranges in a trie, as Cilium keeps them.

use std::net::IpAddr;
use std::sync::Arc;

use bpf::{RawMap, UpdateMode};
use datapath_abi::{
    Pod, PrefilterKey4, PrefilterKey6, ipv4_from_word, ipv4_word, ipv6_from_words, ipv6_words,
};
use ipnetwork::IpNetwork;
use maps::{FamilyConfig, Maps};
use parking_lot::Mutex;

/// A change of the list that was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// Another request has changed the list since.
    #[error("the latest revision is {current}, not {requested}")]
    Revision { current: i64, requested: i64 },
    /// The family is switched off.
    #[error("{range}: its IP family is switched off (enable-ipv4, enable-ipv6)")]
    Family { range: IpNetwork },
    /// A range that is to be removed is not in the list.
    #[error("{range} is not in the list")]
    Missing { range: IpNetwork },
    /// A map could not be opened.
    #[error(transparent)]
    Maps(#[from] maps::Error),
    /// The kernel refused a change, for instance of a full map.
    #[error("{range}: {source}")]
    Refused {
        range: IpNetwork,
        #[source]
        source: bpf::Error,
    },
    /// The kernel refused to list a map.
    #[error("list the ranges: {0}")]
    Unreadable(#[source] bpf::Error),
}

/// The list of a node.
#[derive(Debug)]
pub(crate) struct Senders {
    maps: Arc<Maps>,
    families: FamilyConfig,
    /// The number of the list's state, by which a request says which one it has seen.
    revision: Mutex<i64>,
}

impl Senders {
    pub(crate) fn new(maps: Arc<Maps>, families: &FamilyConfig) -> Senders {
        Senders { maps, families: families.clone(), revision: Mutex::new(1) }
    }

    /// Returns the list in order, with its revision.
    pub(crate) fn list(&self) -> Result<(i64, Vec<IpNetwork>), Error> {
        let revision = self.revision.lock();
        let mut ranges = Vec::new();
        for name in NAMES {
            let Some(map) = self.maps.shared(name)? else { continue };
            let (keys, _) = map.entries().map_err(Error::Unreadable)?;
            ranges.extend(keys.chunks_exact(map.layout().key_size as usize).filter_map(range));
        }
        ranges.sort();
        Ok((*revision, ranges))
    }

    /// Adds ranges to the list, all or none.
    pub(crate) fn insert(&self, requested: i64, ranges: &[IpNetwork]) -> Result<(), Error> {
        self.change(requested, ranges, |map, key, added| {
            if contains(map, key)? {
                return Ok(());
            }
            map.update(key, &[0], UpdateMode::Any)?;
            added.push((map.try_clone()?, key.to_vec()));
            Ok(())
        })
    }

    /// Removes ranges from the list, all or none.
    pub(crate) fn remove(&self, requested: i64, ranges: &[IpNetwork]) -> Result<(), Error> {
        for range in ranges {
            let (map, key) = self.place(*range)?;
            if !contains(&map, &key).map_err(|source| Error::Refused { range: *range, source })? {
                return Err(Error::Missing { range: *range });
            }
        }
        self.change(requested, ranges, |map, key, _| map.delete(key).map(drop))
    }

    /// Applies a change to each range; a failed one is taken back from `added`.
    fn change(
        &self,
        requested: i64,
        ranges: &[IpNetwork],
        apply: impl Fn(&RawMap, &[u8], &mut Vec<(RawMap, Vec<u8>)>) -> bpf::Result<()>,
    ) -> Result<(), Error> {
        let mut revision = self.revision.lock();
        if *revision != requested {
            return Err(Error::Revision { current: *revision, requested });
        }
        let places: Vec<_> = ranges.iter().map(|range| self.place(*range)).collect::<Result<_, _>>()?;
        let mut added = Vec::new();
        for (range, (map, key)) in ranges.iter().zip(&places) {
            if let Err(source) = apply(map, key, &mut added) {
                for (map, key) in added {
                    // Of a map that the kernel does not change there is nothing to take back.
                    let _ = map.delete(&key);
                }
                return Err(Error::Refused { range: *range, source });
            }
        }
        *revision += 1;
        Ok(())
    }

    /// Returns the map and the key of a range.
    fn place(&self, range: IpNetwork) -> Result<(RawMap, Vec<u8>), Error> {
        let prefixlen = u32::from(range.prefix());
        let single = range.prefix() == if range.is_ipv4() { 32 } else { 128 };
        let (name, key, is_on) = match range.network() {
            IpAddr::V4(ip) => {
                let key = PrefilterKey4 { prefixlen, address: ipv4_word(ip) }.as_bytes().to_vec();
                (if single { NAMES[0] } else { NAMES[1] }, key, self.families.enable_ipv4)
            }
            IpAddr::V6(ip) => {
                let key = PrefilterKey6 { prefixlen, address: ipv6_words(ip) }.as_bytes().to_vec();
                (if single { NAMES[2] } else { NAMES[3] }, key, self.families.enable_ipv6)
            }
        };
        let map = self.maps.shared(name)?.filter(|_| is_on);
        map.map(|map| (map, key)).ok_or(Error::Family { range })
    }
}

/// The maps: addresses and ranges of IPv4, then of IPv6.
const NAMES: [&str; 4] =
    ["cilium_cidr_v4_fix", "cilium_cidr_v4_dyn", "cilium_cidr_v6_fix", "cilium_cidr_v6_dyn"];

/// Whether a map has exactly this range: a lookup in a trie finds a larger one as well.
fn contains(map: &RawMap, key: &[u8]) -> bpf::Result<bool> {
    if !map.lookup(key, &mut [0])? {
        return Ok(false);
    }
    let (keys, _) = map.entries()?;
    Ok(keys.chunks_exact(key.len()).any(|found| found == key))
}

fn range(key: &[u8]) -> Option<IpNetwork> {
    let (ip, prefixlen): (IpAddr, u32) = match key.len() == size_of::<PrefilterKey4>() {
        true => {
            let key = PrefilterKey4::from_bytes(key)?;
            (ipv4_from_word(key.address).into(), key.prefixlen)
        }
        false => {
            let key = PrefilterKey6::from_bytes(key)?;
            (ipv6_from_words(key.address).into(), key.prefixlen)
        }
    };
    IpNetwork::new(ip, prefixlen as u8).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use maps::{MapsConfig, Specs};
    use test_kit::{Sandbox, require_root};

    use super::*;

    fn ranges(texts: &[&str]) -> Vec<IpNetwork> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    pub(in crate::prefilter) fn maps(sandbox: &Sandbox) -> Arc<Maps> {
        let options = MapsConfig {
            bpf_root: sandbox.bpf_root().to_str().unwrap().to_owned(),
            preallocate_bpf_maps: false,
            ..MapsConfig::default()
        };
        let maps = Maps::of(Specs::new(options, FamilyConfig::default()).with_prefilter(true));
        maps.open().unwrap();
        Arc::new(maps)
    }

    #[test]
    fn a_change_is_made_of_the_latest_list_and_as_a_whole() {
        require_root!();
        let sandbox = Sandbox::new().unwrap();
        let (maps, families) = (maps(&sandbox), FamilyConfig::default());
        let senders = Senders::new(maps.clone(), &families);
        assert_eq!(senders.list().unwrap(), (1, vec![]));
        let all = ["192.0.2.0/24", "192.0.2.7/32", "198.51.100.1/32", "2001:db8::/32", "2001:db8::1/128"];
        senders.insert(1, &ranges(&all)).unwrap();
        assert_eq!(senders.list().unwrap(), (2, ranges(&all)));
        let stale = senders.insert(1, &ranges(&["10.0.0.0/8"])).unwrap_err();
        assert_eq!(stale.to_string(), "the latest revision is 2, not 1");
        // A range within a listed one is not listed itself.
        let missing = senders.remove(2, &ranges(&["192.0.2.0/24", "192.0.2.0/25"])).unwrap_err();
        assert_eq!(missing.to_string(), "192.0.2.0/25 is not in the list");
        assert_eq!(senders.list().unwrap(), (2, ranges(&all)), "nothing was removed");
        senders.remove(2, &ranges(&all[..4])).unwrap();
        assert_eq!(senders.list().unwrap(), (3, ranges(&all[4..])));
        // The next agent finds what this one has left.
        assert_eq!(Senders::new(maps, &families).list().unwrap(), (1, ranges(&all[4..])));
    }
}
