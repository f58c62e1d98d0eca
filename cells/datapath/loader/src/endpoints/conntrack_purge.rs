//! Removes conntrack entries and policy counters of endpoints that were deleted.
//!
//! The next endpoint with the same address must not inherit connections of the previous one, because a reply of an
//! established connection passes without a policy lookup. A purge scans the whole conntrack tables (a few ms), so it
//! runs after the deletion, one scan for all endpoints that were deleted by then. Only the creation of an endpoint with
//! such an address before the scan waits for it.
//!
//! An agent that is killed in between leaves entries of endpoints without a record. Once the next agent has
//! restored all endpoints it requests a full scan ([`ConntrackPurge::request_full_scan`]), which finds them:
//! connections of addresses in the node's pod ranges that no endpoint has, and counters of endpoint ids that do not
//! exist.

use std::collections::BTreeSet;
use std::net::IpAddr;

use bpf::RawMap;
use datapath_abi::PolicyStatsKey;
use ipnetwork::IpNetwork;
use maps::Maps;
use tokio::sync::Notify;

use datapath_api::{DatapathError, Step};

use crate::endpoints::lock_order::{Mutex, Rank};

/// The addresses and ids that are still to be purged.
#[derive(Debug)]
pub struct ConntrackPurge {
    pending: Mutex<Pending>,
    /// Address ranges that are assigned to endpoints only.
    own: Mutex<OwnAddresses>,
    /// Held during a scan. A thread that has waited for it knows that the addresses of that scan are purged.
    scanning: Mutex<()>,
    changed: Notify,
}

/// The addresses that a node assigns to its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnAddresses {
    /// The node's pod CIDRs.
    pub ranges: Vec<IpNetwork>,
    /// The router's addresses in these ranges, which no pod has.
    pub routers: Vec<IpAddr>,
}

impl OwnAddresses {
    fn may_be_of_a_pod(&self, ip: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(ip)) && !self.routers.contains(&ip)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Pending {
    addresses: BTreeSet<IpAddr>,
    endpoints: BTreeSet<u16>,
    /// Whether a previous run may have left entries of addresses and ids that are not listed here.
    full_scan: bool,
}

impl Default for ConntrackPurge {
    fn default() -> ConntrackPurge {
        ConntrackPurge {
            pending: Mutex::new(Rank::State, Pending::default()),
            own: Mutex::new(Rank::State, OwnAddresses::default()),
            scanning: Mutex::new(Rank::ConntrackScan, ()),
            changed: Notify::new(),
        }
    }
}

impl ConntrackPurge {
    /// Schedules the purge of addresses that an endpoint had.
    pub(crate) fn add_addresses(&self, addresses: impl Iterator<Item = IpAddr>) {
        self.pending.lock().addresses.extend(addresses);
        self.changed.notify_one();
    }

    /// Schedules the purge of the counters of a deleted endpoint.
    pub(crate) fn add_endpoint(&self, id: u16) {
        self.pending.lock().endpoints.insert(id);
        self.changed.notify_one();
    }

    /// Sets the addresses that belong to pods.
    pub fn set_own_addresses(&self, own: OwnAddresses) {
        *self.own.lock() = own;
    }

    /// Schedules a purge of all entries that belong to no endpoint. Call it once all endpoints are restored: it also
    /// removes entries of endpoints that are not restored yet.
    pub(crate) fn request_full_scan(&self) {
        self.pending.lock().full_scan = true;
        self.changed.notify_one();
    }

    /// Purges everything that is scheduled and returns the number of deleted entries. Failed purges stay scheduled.
    ///
    /// # Errors
    /// If a map cannot be opened, read or changed.
    pub fn purge(&self, maps: &Maps) -> Result<usize, DatapathError> {
        let _scanning = self.scanning.lock();
        let scheduled = self.pending.lock().clone();
        if scheduled == Pending::default() {
            return Ok(0);
        }
        let mut gone = scheduled.clone();
        if scheduled.full_scan {
            self.find_unowned(maps, &mut gone)?;
        }
        let mut deleted = 0;
        if !gone.addresses.is_empty() {
            for name in conntrack_gc::MAPS {
                if let Some(map) = maps.shared(name)? {
                    deleted += conntrack_gc::forget(&map, &gone.addresses)
                        .step(|| format!("delete connections of former endpoints in {name}"))?;
                }
            }
        }
        if !gone.endpoints.is_empty() {
            let counts = maps.policy_stats()?;
            let of_gone = |key: &PolicyStatsKey| gone.endpoints.contains(&key.endpoint_id);
            deleted +=
                delete(counts.raw(), of_gone).step(|| "delete counters of former endpoints".to_owned())?;
        }
        // More may have been scheduled during the scan.
        let mut pending = self.pending.lock();
        pending.addresses.retain(|address| !scheduled.addresses.contains(address));
        pending.endpoints.retain(|id| !scheduled.endpoints.contains(id));
        pending.full_scan &= !scheduled.full_scan;
        Ok(deleted)
    }

    /// Adds addresses and ids that have entries and belong to no endpoint. The endpoints are read after the entries, so
    /// an endpoint that is created meanwhile does not count as deleted.
    fn find_unowned(&self, maps: &Maps, gone: &mut Pending) -> Result<(), DatapathError> {
        let own = self.own.lock().clone();
        let mut addresses = BTreeSet::new();
        for name in conntrack_gc::MAPS {
            if let Some(map) = maps.shared(name)? {
                let found = conntrack_gc::ends_among(&map, |ip| own.may_be_of_a_pod(ip));
                addresses.extend(found.step(|| format!("scan {name} for connections without an endpoint"))?);
            }
        }
        let mut endpoints = BTreeSet::new();
        let counts = maps.policy_stats()?;
        let seen = |keys: &[u8], _: &[u8]| {
            endpoints.extend(bpf::values_of::<PolicyStatsKey>(keys).iter().map(|key| key.endpoint_id));
        };
        counts.raw().scan(seen).step(|| "scan for counters without an endpoint".to_owned())?;
        let read = || "read the endpoints".to_owned();
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

    /// Purges now if one of these addresses or a full scan is scheduled: a new endpoint is about to get the addresses.
    pub(crate) fn purge_before_reuse(
        &self,
        maps: &Maps,
        mut addresses: impl Iterator<Item = IpAddr>,
    ) -> Result<(), DatapathError> {
        let is_scheduled = {
            let pending = self.pending.lock();
            pending.full_scan || addresses.any(|address| pending.addresses.contains(&address))
        };
        if is_scheduled { self.purge(maps).map(drop) } else { Ok(()) }
    }

    /// Resolves when something is scheduled.
    pub(crate) async fn scheduled(&self) {
        self.changed.notified().await;
    }
}

/// Deletes the entries with selected keys and returns their number.
fn delete(map: &RawMap, which: impl Fn(&PolicyStatsKey) -> bool) -> bpf::Result<usize> {
    let mut keys: Vec<PolicyStatsKey> = Vec::new();
    map.scan(|some, _| keys.extend(bpf::values_of(some).into_iter().filter(&which)))?;
    map.delete_batch(bpf::bytes_of(&keys))?;
    Ok(keys.len())
}
