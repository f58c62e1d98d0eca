//! Endpoints that are gone, until the datapath has forgotten their connections and counts.
//!
//! Whoever gets the address of one next must have no part in connections of the one before: a reply to one of those passes
//! without policy. Forgetting walks through all connections (some ms), so it happens behind the deletion, for all
//! that are gone by then at once; only an endpoint that comes with such an address before waits for it.
//!
//! An agent that is killed in between leaves connections and counts of endpoints that nobody knows any more. Once the next
//! one knows all endpoints it looks for such rows itself ([`Departed::look`]): connections of addresses in the node's pod
//! ranges that no endpoint has, counts of endpoints that are none.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bpf::RawMap;
use datapath_abi::PolicyStatsKey;
use ipnetwork::IpNetwork;
use maps::Maps;
use tokio::sync::Notify;

use datapath_api::{DatapathError, Step};

/// Endpoints of which rows are left.
#[derive(Debug, Default)]
pub struct Departed {
    gone: Mutex<Gone>,
    /// Addresses that nobody but endpoints has.
    own: Mutex<OwnAddresses>,
    /// Held by who walks through the maps: who waits for it finds the addresses gone.
    walking: Mutex<()>,
    noted: Notify,
}

/// The addresses that a node gives to its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnAddresses {
    /// The ranges that they are from.
    pub ranges: Vec<IpNetwork>,
    /// The node's own in these ranges.
    pub routers: Vec<IpAddr>,
}

impl OwnAddresses {
    fn may_be_of_a_pod(&self, ip: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(ip)) && !self.routers.contains(&ip)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Gone {
    addresses: BTreeSet<IpAddr>,
    endpoints: BTreeSet<u16>,
    /// Whether there may be others, of an earlier agent.
    look: bool,
}

impl Departed {
    /// Notes addresses that an endpoint had.
    pub(crate) fn note(&self, addresses: impl Iterator<Item = IpAddr>) {
        lock(&self.gone).addresses.extend(addresses);
        self.noted.notify_one();
    }

    /// Notes an endpoint that is gone itself.
    pub(crate) fn note_endpoint(&self, id: u16) {
        lock(&self.gone).endpoints.insert(id);
        self.noted.notify_one();
    }

    /// Tells which addresses are of pods.
    pub fn set_own_addresses(&self, own: OwnAddresses) {
        *lock(&self.own) = own;
    }

    /// All endpoints are known: what there is of others is to be forgotten.
    pub(crate) fn look(&self) {
        lock(&self.gone).look = true;
        self.noted.notify_one();
    }

    /// Forgets all that was noted. Gives how many rows that were.
    pub fn forget(&self, maps: &Maps) -> Result<usize, DatapathError> {
        let _walking = lock(&self.walking);
        let noted = lock(&self.gone).clone();
        if noted == Gone::default() {
            return Ok(0);
        }
        let mut gone = noted.clone();
        if noted.look {
            self.find(maps, &mut gone)?;
        }
        let mut forgotten = 0;
        if !gone.addresses.is_empty() {
            for name in conntrack_gc::MAPS {
                if let Some(map) = maps.shared(name)? {
                    forgotten += conntrack_gc::forget(&map, &gone.addresses)
                        .step(|| format!("forget connections of former endpoints in {name}"))?;
                }
            }
        }
        if !gone.endpoints.is_empty() {
            let counts = maps.policy_stats()?;
            let of_gone = |key: &PolicyStatsKey| gone.endpoints.contains(&key.endpoint_id);
            forgotten +=
                delete(counts.raw(), of_gone).step(|| "forget counts of former endpoints".to_owned())?;
        }
        let mut left = lock(&self.gone);
        left.addresses.retain(|address| !noted.addresses.contains(address));
        left.endpoints.retain(|id| !noted.endpoints.contains(id));
        left.look &= !noted.look;
        Ok(forgotten)
    }

    /// Adds what the maps have of endpoints that there are not. What comes meanwhile is not taken for it: who is there is
    /// asked last.
    fn find(&self, maps: &Maps, gone: &mut Gone) -> Result<(), DatapathError> {
        let own = lock(&self.own).clone();
        let mut addresses = BTreeSet::new();
        for name in conntrack_gc::MAPS {
            if let Some(map) = maps.shared(name)? {
                let found = conntrack_gc::ends_among(&map, |ip| own.may_be_of_a_pod(ip));
                addresses.extend(found.step(|| format!("look for connections of nobody in {name}"))?);
            }
        }
        let mut endpoints = BTreeSet::new();
        let counts = maps.policy_stats()?;
        let seen = |keys: &[u8], _: &[u8]| {
            endpoints.extend(bpf::values_of::<PolicyStatsKey>(keys).iter().map(|key| key.endpoint_id));
        };
        counts.raw().scan(seen).step(|| "look for counts of nobody".to_owned())?;
        let read = || "read who is there".to_owned();
        for key in maps.lxc().keys().step(read)? {
            key.ip().map(|ip| addresses.remove(&ip));
        }
        for id in maps.ep_ids().keys().step(read)? {
            u16::try_from(id).map(|id| endpoints.remove(&id)).ok();
        }
        gone.addresses.extend(addresses);
        gone.endpoints.extend(endpoints);
        Ok(())
    }

    /// Makes sure that nothing is known of connections of these addresses; at once, unless one has just been taken away or
    /// an earlier agent may have left some.
    pub(crate) fn settle(
        &self,
        maps: &Maps,
        mut addresses: impl Iterator<Item = IpAddr>,
    ) -> Result<(), DatapathError> {
        let pending = {
            let gone = lock(&self.gone);
            gone.look || addresses.any(|address| gone.addresses.contains(&address))
        };
        if pending { self.forget(maps).map(drop) } else { Ok(()) }
    }

    /// Resolves when there is something to forget.
    pub(crate) async fn noted(&self) {
        self.noted.notified().await;
    }
}

/// Deletes rows by their keys; how many.
fn delete(map: &RawMap, which: impl Fn(&PolicyStatsKey) -> bool) -> bpf::Result<usize> {
    let mut keys: Vec<PolicyStatsKey> = Vec::new();
    map.scan(|some, _| keys.extend(bpf::values_of(some).into_iter().filter(&which)))?;
    map.delete_batch(bpf::bytes_of(&keys))?;
    Ok(keys.len())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
