//! A cache of lookups: names with their addresses.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use crate::lookup::Lookup;
use crate::pattern::Pattern;
use crate::small_map::SmallMap;

/// Pairs of a name and an address, each with its latest lookup. A pair stays until it is removed by
/// [`expire`](Cache::expire) or another method: readers see the state of the latest collection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cache {
    names: HashMap<Arc<str>, SmallMap<IpAddr, Packed>>,
    /// The number of pairs.
    len: usize,
}

/// The times of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Stamp {
    expiration: Timestamp,
    lookup: Timestamp,
    ttl: u32,
}

/// A [`Stamp`] in 28 bytes instead of 40: there are many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, packed(4))]
struct Packed {
    seconds: [i64; 2],
    nanoseconds: [i32; 2],
    ttl: u32,
}

impl From<Stamp> for Packed {
    fn from(stamp: Stamp) -> Packed {
        let times = [stamp.expiration, stamp.lookup];
        Packed {
            seconds: times.map(Timestamp::as_second),
            nanoseconds: times.map(Timestamp::subsec_nanosecond),
            ttl: stamp.ttl,
        }
    }
}

impl From<Packed> for Stamp {
    fn from(packed: Packed) -> Stamp {
        let (seconds, nanoseconds) = (packed.seconds, packed.nanoseconds);
        // Both parts are those of a valid time.
        let time = |at: usize| Timestamp::new(seconds[at], nanoseconds[at]).unwrap_or_default();
        Stamp { expiration: time(0), lookup: time(1), ttl: packed.ttl }
    }
}

/// A pair that was removed from a cache.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Removed {
    /// The name.
    pub name: Arc<str>,
    /// The address.
    pub address: IpAddr,
    /// When it expires, or has expired.
    pub expiration: Timestamp,
}

impl Cache {
    /// Inserts a lookup. Of two lookups of a pair the one that expires later stays, the older one on a tie. Returns the
    /// addresses that the name did not have.
    pub fn insert(&mut self, lookup: &Lookup) -> Vec<IpAddr> {
        let Lookup { lookup_time, expiration_time, ttl, .. } = *lookup;
        let stamp = Stamp { expiration: expiration_time, lookup: lookup_time, ttl };
        let mut new = Vec::new();
        if lookup.addresses.is_empty() {
            return new;
        }
        let pairs = self.names.entry(lookup.name.clone()).or_default();
        for &address in &lookup.addresses {
            match pairs.get_mut(&address) {
                Some(old) if Stamp::from(*old).expiration >= stamp.expiration => {}
                Some(old) => *old = stamp.into(),
                None => {
                    pairs.insert_new(address, stamp.into());
                    new.push(address);
                }
            }
        }
        pairs.shrink_to_fit();
        self.len += new.len();
        new
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over all names.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.names.keys()
    }

    /// Iterates over the addresses of a name, in order.
    pub fn addresses(&self, name: &str) -> impl Iterator<Item = IpAddr> {
        self.names.get(name).into_iter().flat_map(SmallMap::iter).map(|(address, _)| address)
    }

    /// Whether the name has the address.
    pub fn contains(&self, name: &str, address: IpAddr) -> bool {
        self.names.get(name).is_some_and(|pairs| pairs.contains_key(&address))
    }

    /// Returns all lookups, by name and time, each with the addresses for which it is the latest.
    pub fn lookups(&self) -> Vec<Lookup> {
        let mut by_lookup: BTreeMap<(&Arc<str>, Stamp), Vec<IpAddr>> = BTreeMap::new();
        for (name, pairs) in &self.names {
            for (address, stamp) in pairs.iter() {
                by_lookup.entry((name, Stamp::from(*stamp))).or_default().push(address);
            }
        }
        let lookup = |((name, stamp), addresses): ((&Arc<str>, Stamp), Vec<IpAddr>)| Lookup {
            name: name.clone(),
            lookup_time: stamp.lookup,
            expiration_time: stamp.expiration,
            ttl: stamp.ttl,
            addresses,
        };
        by_lookup.into_iter().map(lookup).collect()
    }

    /// Removes the pairs that have expired. Linear in the number of pairs.
    pub fn expire(&mut self, now: Timestamp) -> Vec<Removed> {
        self.remove_if(|_, _, stamp| stamp.expiration <= now)
    }

    /// Removes the pairs of names that match. Returns them.
    pub fn remove_matching(&mut self, pattern: &Pattern) -> Vec<Removed> {
        self.remove_if(|name, _, _| pattern.matches(name))
    }

    /// Removes a pair. Returns whether there was one.
    pub fn remove(&mut self, name: &str, address: IpAddr) -> bool {
        let Some(pairs) = self.names.get_mut(name) else { return false };
        if !pairs.remove(&address) {
            return false;
        }
        if pairs.is_empty() {
            self.names.remove(name);
        }
        self.len -= 1;
        true
    }

    /// Removes addresses of each name that has more than `limit`: those that expire first. 0 is no limit.
    pub fn trim(&mut self, limit: usize) -> Vec<Removed> {
        let mut removed = Vec::new();
        if limit == 0 {
            return removed;
        }
        for (name, pairs) in self.names.iter().filter(|(_, pairs)| pairs.len() > limit) {
            removed.extend(first_to_expire(pairs.len() - limit, pairs.iter().map(|pair| (name, pair))));
        }
        self.remove_all(&removed);
        removed
    }

    /// Removes the pairs that expire first until there are `len`. Linear in the number of pairs.
    pub fn shrink(&mut self, len: usize) -> Vec<Removed> {
        let excess = self.len.saturating_sub(len);
        if excess == 0 {
            return Vec::new();
        }
        let all = self.names.iter().flat_map(|(name, pairs)| pairs.iter().map(move |pair| (name, pair)));
        let removed = first_to_expire(excess, all);
        self.remove_all(&removed);
        removed
    }

    fn remove_all(&mut self, pairs: &[Removed]) {
        for pair in pairs {
            self.remove(&pair.name, pair.address);
        }
    }

    fn remove_if(&mut self, is_stale: impl Fn(&str, IpAddr, Stamp) -> bool) -> Vec<Removed> {
        let mut removed = Vec::new();
        self.names.retain(|name, pairs| {
            pairs.retain(|address, stamp| {
                let stamp = Stamp::from(*stamp);
                let stale = is_stale(name, address, stamp);
                if stale {
                    removed.push(Removed { name: name.clone(), address, expiration: stamp.expiration });
                }
                !stale
            });
            !pairs.is_empty()
        });
        self.len -= removed.len();
        removed.sort();
        removed
    }
}

/// Returns the pairs that expire first; of those that expire at once the ones with the lowest names and addresses.
fn first_to_expire<'a>(
    count: usize,
    pairs: impl Iterator<Item = (&'a Arc<str>, (IpAddr, &'a Packed))>,
) -> Vec<Removed> {
    let mut pairs: Vec<_> =
        pairs.map(|(name, (address, stamp))| (Stamp::from(*stamp).expiration, name, address)).collect();
    pairs.sort_unstable();
    pairs.truncate(count);
    let removed =
        |(expiration, name, address): (_, &Arc<str>, _)| Removed { name: name.clone(), address, expiration };
    pairs.into_iter().map(removed).collect()
}
