//! Lookups, and the limits of caches.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::name::canonical;

/// An answer: a name with addresses. Its JSON form is that of the records and the API of Cilium.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Lookup {
    /// The name, canonical.
    #[serde(rename = "fqdn", default)]
    pub name: Arc<str>,
    /// When it was answered.
    #[serde(default, serialize_with = "write_time", deserialize_with = "read_time")]
    pub lookup_time: Timestamp,
    /// When it ends, unless connections keep it.
    #[serde(default, serialize_with = "write_time", deserialize_with = "read_time")]
    pub expiration_time: Timestamp,
    /// The time to live of the answer, in seconds.
    #[serde(default)]
    pub ttl: u32,
    /// The addresses.
    #[serde(rename = "ips", default)]
    pub addresses: Vec<IpAddr>,
}

/// The limits of the names of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The shortest time to live, in seconds; answers with a shorter one are kept as long.
    pub min_ttl: u32,
    /// The maximum number of addresses of a name; 0 for no limit.
    pub addresses_per_name: usize,
    /// The maximum number of addresses that are kept only for connections; 0 for no limit.
    pub zombies: usize,
    /// How long an address is kept after its last connection.
    pub idle_grace_period: SignedDuration,
    /// The maximum number of pairs of a name and an address: a workload must not use up the agent's memory.
    pub entries: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            min_ttl: 0,
            addresses_per_name: 1000,
            zombies: 10_000,
            idle_grace_period: SignedDuration::ZERO,
            entries: 50_000,
        }
    }
}

impl Lookup {
    /// Returns the lookup of a name, which is made canonical. It expires after `ttl` seconds.
    pub fn new(name: &str, addresses: Vec<IpAddr>, ttl: u32, now: Timestamp) -> Lookup {
        let expiration_time = after(now, ttl);
        Lookup { name: canonical(name).into(), lookup_time: now, expiration_time, ttl, addresses }
    }

    /// Returns the lookup with its expiration extended to the shortest time to live.
    pub(crate) fn with_min_ttl(self, min_ttl: u32) -> Lookup {
        let earliest = after(self.lookup_time, min_ttl);
        Lookup { expiration_time: self.expiration_time.max(earliest), ..self }
    }
}

/// Returns a time some seconds later, the last one at most.
pub(crate) fn after(time: Timestamp, seconds: u32) -> Timestamp {
    time.checked_add(SignedDuration::from_secs(seconds.into())).unwrap_or(Timestamp::MAX)
}

pub(crate) fn write_time<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(time)
}

/// Reads a time; an absent one is the beginning of the epoch.
pub(crate) fn read_time<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
    use serde::de::Error;
    match Option::<String>::deserialize(from)? {
        None => Ok(Timestamp::UNIX_EPOCH),
        Some(text) => text.parse().map_err(|error| D::Error::custom(format!("{text:?}: {error}"))),
    }
}
