//! The lookups of one endpoint, and their form in its record.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::cache::{Cache, Removed};
use crate::lookup::{Limits, Lookup};
use crate::name::canonical;
use crate::pattern::Pattern;
use crate::zombies::{Zombie, Zombies};

/// The key of a record's zombies.
const DELETES: &str = "deletes";

/// The names that an endpoint has looked up, and those that have expired while connections are open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    cache: Cache,
    zombies: Zombies,
}

/// An entry of a record that cannot be read; it is ignored.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {source}")]
pub struct BadHistory {
    /// The field of the record.
    pub field: &'static str,
    /// The error.
    #[source]
    pub source: serde_json::Error,
}

impl History {
    /// Returns the lookups.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Returns the expired names.
    pub fn zombies(&self) -> &Zombies {
        &self.zombies
    }

    /// Whether the name has the address, by a lookup or a connection.
    pub fn contains(&self, name: &str, address: IpAddr) -> bool {
        self.cache.contains(name, address) || self.zombies.contains(name, address)
    }

    /// Inserts a lookup. Lookups that expire first become zombies if the endpoint has too many. Returns the pairs that are
    /// removed because of too many zombies.
    pub fn insert(&mut self, lookup: Lookup, limits: &Limits) -> Vec<(Arc<str>, IpAddr)> {
        let lookup = lookup.with_min_ttl(limits.min_ttl);
        for address in self.cache.insert(&lookup) {
            self.zombies.remove(&lookup.name, address);
        }
        if self.cache.len() > limits.entries {
            // Some more than needed: each eviction costs a scan.
            let evicted = self.cache.shrink(limits.entries - limits.entries / 10);
            self.retire(&evicted, lookup.lookup_time);
        }
        // The limit of zombies holds after a collection; a workload must not fill the memory in between.
        match self.zombies.pairs() > limits.entries {
            true => self.zombies.shrink_pairs(limits.entries - limits.entries / 10),
            false => Vec::new(),
        }
    }

    /// Expires lookups, which become zombies, and removes zombies without a connection. Returns the removed pairs.
    pub fn collect(
        &mut self,
        now: Timestamp,
        limits: &Limits,
        has_connection: impl Fn(IpAddr) -> bool,
    ) -> Vec<(Arc<str>, IpAddr)> {
        let expired = self.cache.expire(now);
        self.retire(&expired, now);
        let trimmed = self.cache.trim(limits.addresses_per_name);
        self.retire(&trimmed, now);
        let mut removed = self.zombies.collect(now, limits, has_connection);
        if self.zombies.pairs() > limits.entries {
            removed.extend(self.zombies.shrink_pairs(limits.entries));
        }
        removed
    }

    /// Removes the names that match, all without a pattern. Returns them.
    pub fn clear(&mut self, pattern: Option<&Pattern>) -> BTreeSet<Arc<str>> {
        match pattern {
            Some(pattern) => {
                let removed = self.cache.remove_matching(pattern).into_iter().map(|pair| pair.name);
                removed.chain(self.zombies.remove_matching(pattern)).collect()
            }
            None => std::mem::take(self).names(),
        }
    }

    /// Returns all names.
    pub fn names(&self) -> BTreeSet<Arc<str>> {
        let of_zombies = self.zombies.iter().flat_map(|zombie| &zombie.names);
        self.cache.names().chain(of_zombies).cloned().collect()
    }

    /// Returns the fields `DNSHistory` and `DNSZombies` of the endpoint's record.
    pub fn to_record(&self) -> (Vec<Value>, BTreeMap<String, Value>) {
        let lookups = self.cache.lookups();
        let to_value = |lookup| serde_json::to_value(lookup).unwrap_or_default();
        let history = lookups.iter().map(to_value).collect();
        let zombie =
            |zombie: &Zombie| (zombie.address.to_string(), serde_json::to_value(zombie).unwrap_or_default());
        let deletes: Map<String, Value> = self.zombies.iter().map(zombie).collect();
        let zombies = match deletes.is_empty() {
            true => BTreeMap::new(),
            false => BTreeMap::from([(DELETES.to_owned(), Value::Object(deletes))]),
        };
        (history, zombies)
    }

    /// Reads the fields of a record. Entries that cannot be read are left out and returned as errors.
    pub fn from_record(history: &[Value], zombies: &BTreeMap<String, Value>) -> (History, Vec<BadHistory>) {
        let mut restored = History::default();
        let mut errors = Vec::new();
        for value in history {
            match serde_json::from_value::<Lookup>(value.clone()) {
                Ok(lookup) => {
                    let name = canonical(&lookup.name).into();
                    restored.cache.insert(&Lookup { name, ..lookup });
                }
                Err(source) => errors.push(BadHistory { field: "DNSHistory", source }),
            }
        }
        let deletes = zombies.get(DELETES).and_then(Value::as_object);
        for value in deletes.into_iter().flat_map(Map::values) {
            match serde_json::from_value::<Zombie>(value.clone()) {
                Ok(zombie) => restored.zombies.restore(zombie),
                Err(source) => errors.push(BadHistory { field: "DNSZombies", source }),
            }
        }
        (restored, errors)
    }

    fn retire(&mut self, pairs: &[Removed], now: Timestamp) {
        for pair in pairs {
            self.zombies.insert(pair, now);
        }
    }
}
