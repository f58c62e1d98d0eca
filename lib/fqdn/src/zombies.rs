//! Names that have expired while connections to their addresses may be open.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::cache::Removed;
use crate::lookup::{Limits, read_time, write_time};
use crate::pattern::Pattern;

/// How long an address is kept although no connection to it is found: a workload may use an answer some time after it.
const NEW_CONNECTION_PERIOD: SignedDuration = SignedDuration::from_secs(60);

/// An address whose names have expired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Zombie {
    /// The names.
    #[serde(default)]
    pub names: BTreeSet<Arc<str>>,
    /// The address.
    #[serde(rename = "ip")]
    pub address: IpAddr,
    /// When a connection was last found.
    #[serde(default, serialize_with = "write_time", deserialize_with = "read_time")]
    pub alive_at: Timestamp,
    /// When the latest of its names has expired.
    #[serde(default, serialize_with = "write_time", deserialize_with = "read_time")]
    pub delete_pending_at: Timestamp,
}

/// The zombies of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Zombies {
    by_address: BTreeMap<IpAddr, Zombie>,
    /// The number of pairs of a name and an address.
    pairs: usize,
}

impl Zombies {
    /// Inserts a pair that has expired or was evicted.
    pub fn insert(&mut self, pair: &Removed, now: Timestamp) {
        let zombie = self.by_address.entry(pair.address).or_insert_with(|| Zombie {
            names: BTreeSet::new(),
            address: pair.address,
            alive_at: Timestamp::UNIX_EPOCH,
            delete_pending_at: Timestamp::UNIX_EPOCH,
        });
        self.pairs += usize::from(zombie.names.insert(pair.name.clone()));
        zombie.delete_pending_at = zombie.delete_pending_at.max(pair.expiration).max(now);
    }

    /// Inserts a zombie of a record.
    pub(crate) fn restore(&mut self, zombie: Zombie) {
        if zombie.names.is_empty() {
            return;
        }
        self.pairs += zombie.names.len();
        if let Some(replaced) = self.by_address.insert(zombie.address, zombie) {
            self.pairs -= replaced.names.len();
        }
    }

    /// Returns the number of addresses.
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Returns the number of pairs of a name and an address.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// Iterates over all, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Zombie> {
        self.by_address.values()
    }

    /// Whether the name has the address.
    pub fn contains(&self, name: &str, address: IpAddr) -> bool {
        self.by_address.get(&address).is_some_and(|zombie| zombie.names.contains(name))
    }

    /// Removes a pair. Returns whether there was one.
    pub fn remove(&mut self, name: &str, address: IpAddr) -> bool {
        let Some(zombie) = self.by_address.get_mut(&address) else { return false };
        let had = zombie.names.remove(name);
        self.pairs -= usize::from(had);
        if zombie.names.is_empty() {
            self.by_address.remove(&address);
        }
        had
    }

    /// Removes the pairs of names that match. Returns the names.
    pub fn remove_matching(&mut self, pattern: &Pattern) -> BTreeSet<Arc<str>> {
        let (mut removed, mut pairs) = (BTreeSet::new(), 0);
        self.by_address.retain(|_, zombie| {
            let (stale, left) =
                std::mem::take(&mut zombie.names).into_iter().partition(|name| pattern.matches(name));
            zombie.names = left;
            pairs += zombie.names.len();
            removed.extend::<BTreeSet<_>>(stale);
            !zombie.names.is_empty()
        });
        self.pairs = pairs;
        removed
    }

    /// Removes the zombies without a connection, and those above the limits. A zombie also stays while another address of
    /// one of its names has a connection: an application may return to any address of an answer. Returns the removed pairs.
    pub fn collect(
        &mut self,
        now: Timestamp,
        limits: &Limits,
        has_connection: impl Fn(IpAddr) -> bool,
    ) -> Vec<(Arc<str>, IpAddr)> {
        let mut alive = BTreeSet::new();
        let mut names_in_use = BTreeSet::new();
        let idle_period = limits.idle_grace_period.max(SignedDuration::ZERO);
        for zombie in self.by_address.values_mut() {
            if has_connection(zombie.address) {
                zombie.alive_at = now;
            }
            let is_connected = zombie.alive_at == now || now.duration_since(zombie.alive_at) < idle_period;
            let since_expiry = now.duration_since(zombie.delete_pending_at);
            if is_connected || since_expiry < NEW_CONNECTION_PERIOD.saturating_add(idle_period) {
                alive.insert(zombie.address);
            }
            if is_connected {
                names_in_use.extend(zombie.names.iter().cloned());
            }
        }
        let mut removed = Vec::new();
        self.by_address.retain(|address, zombie| {
            let stays =
                alive.contains(address) || zombie.names.iter().any(|name| names_in_use.contains(name));
            if !stays {
                removed.extend(zombie.names.iter().map(|name| (name.clone(), *address)));
            }
            stays
        });
        self.pairs -= removed.len();
        self.evict_names(limits.addresses_per_name, &mut removed);
        if limits.zombies > 0 {
            removed.extend(self.shrink(limits.zombies));
        }
        removed
    }

    /// Removes addresses until there are `len`: those whose last connection is the longest ago, then those that have
    /// expired first, then those with the fewest names. Returns the removed pairs.
    pub fn shrink(&mut self, len: usize) -> Vec<(Arc<str>, IpAddr)> {
        let excess = self.by_address.len().saturating_sub(len);
        if excess == 0 {
            return Vec::new();
        }
        let mut ranked: Vec<_> =
            self.by_address.values().map(|zombie| (zombie.rank(), zombie.address)).collect();
        ranked.sort_unstable();
        let mut removed = Vec::new();
        for (_, address) in ranked.into_iter().take(excess) {
            let zombie = self.by_address.remove(&address);
            let names = zombie.into_iter().flat_map(|zombie| zombie.names);
            removed.extend(names.map(|name| (name, address)));
        }
        self.pairs -= removed.len();
        removed
    }

    /// Removes pairs until there are `pairs`, of addresses in the order of [`shrink`](Self::shrink). One address may have
    /// all of them: it stays with some of its names. Returns the removed pairs.
    pub fn shrink_pairs(&mut self, pairs: usize) -> Vec<(Arc<str>, IpAddr)> {
        let mut removed = Vec::new();
        let mut ranked: Vec<_> =
            self.by_address.values().map(|zombie| (zombie.rank(), zombie.address)).collect();
        ranked.sort_unstable();
        for (_, address) in ranked {
            let Some(zombie) = self.by_address.get_mut(&address) else { continue };
            while self.pairs > pairs
                && let Some(name) = zombie.names.pop_first()
            {
                self.pairs -= 1;
                removed.push((name, address));
            }
            if !zombie.names.is_empty() {
                break;
            }
            self.by_address.remove(&address);
        }
        removed
    }

    /// Removes addresses of names that have more than `limit`.
    fn evict_names(&mut self, limit: usize, removed: &mut Vec<(Arc<str>, IpAddr)>) {
        if limit == 0 || self.by_address.len() <= limit {
            return;
        }
        let mut by_name: BTreeMap<Arc<str>, Vec<(Rank, IpAddr)>> = BTreeMap::new();
        for zombie in self.by_address.values() {
            for name in &zombie.names {
                by_name.entry(name.clone()).or_default().push((zombie.rank(), zombie.address));
            }
        }
        for (name, mut addresses) in by_name {
            let excess = addresses.len().saturating_sub(limit);
            addresses.sort_unstable();
            for (_, address) in addresses.into_iter().take(excess) {
                self.remove(&name, address);
                removed.push((name.clone(), address));
            }
        }
    }
}

/// The order of eviction.
type Rank = (Timestamp, Timestamp, usize);

impl Zombie {
    fn rank(&self) -> Rank {
        (self.alive_at, self.delete_pending_at, self.names.len())
    }
}
