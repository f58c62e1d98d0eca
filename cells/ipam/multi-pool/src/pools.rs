//! The ranges of pools that this node has, requests and gives back: a pure function of its CiliumNode and the addresses in use.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipam::{Family, PodRange};
use ipnetwork::IpNetwork;
use k8s_types::cilium::{CiliumNode, IpamPoolAllocation, IpamPools};
use local_node::NodePool;
use serde_json::{Value, json};

/// The options that decide about demand.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) default_pool: Arc<str>,
    /// Free addresses to keep by pool.
    pub(crate) pre_allocation: BTreeMap<String, u64>,
    /// The families that are on.
    pub(crate) families: Vec<Family>,
}

/// The addresses of this node, and the requests that wait for one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) allocated: BTreeSet<IpAddr>,
    /// Released addresses in quarantine.
    pub(crate) resting: BTreeSet<IpAddr>,
    /// How many addresses have an owner or are waited for, by pool and family.
    pub(crate) needed: BTreeMap<(Arc<str>, Family), u64>,
    /// Ranges that are no longer the node's according to its CiliumNode, with their pool, although addresses are in use.
    pub(crate) lost: Vec<(String, IpNetwork)>,
}

impl Usage {
    fn count(&self, cidr: IpNetwork) -> u64 {
        self.allocated.range(ends(cidr)).count() as u64
    }

    fn is_vacant(&self, cidr: IpNetwork) -> bool {
        self.count(cidr) == 0 && self.resting.range(ends(cidr)).next().is_none()
    }

    fn needs(&self, pool: &str, family: Family) -> u64 {
        self.needed.get(&(pool.into(), family)).copied().unwrap_or_default()
    }
}

fn ends(cidr: IpNetwork) -> std::ops::RangeInclusive<IpAddr> {
    cidr.network()..=cidr.broadcast()
}

/// The ranges as the CiliumNode has them, and those on their way out of it or back into it.
#[derive(Debug, Default)]
pub(crate) struct NodePools {
    observed: Vec<Pool>,
    /// Invalid or conflicting entries, which are written back as they are.
    unusable: Vec<(String, String)>,
    pub(crate) problems: Vec<String>,
    /// Ranges that are given back: they leave the object with the next write.
    releasing: BTreeSet<IpNetwork>,
    /// Whether the last write may have happened or not, so that a range that it gives back must not be used.
    is_in_doubt: bool,
    /// Ranges that were written again because addresses of them are in use. They give no address: another node may have got
    /// them meanwhile.
    reclaimed: BTreeMap<IpNetwork, Reclaimed>,
}

/// A range that the object had lost.
#[derive(Debug)]
struct Reclaimed {
    pool: String,
    is_written: bool,
}

/// A pool of the object, with its valid ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pool {
    name: String,
    cidrs: Vec<IpNetwork>,
    allow_first_ip: bool,
    allow_last_ip: bool,
}

impl Pool {
    fn of(&self, family: Family) -> impl Iterator<Item = IpNetwork> + '_ {
        self.cidrs.iter().copied().filter(move |cidr| Family::of(cidr.ip()) == family)
    }

    fn capacity(&self, cidr: IpNetwork) -> u128 {
        PodRange::with_ends(cidr, self.allow_first_ip, self.allow_last_ip).capacity()
    }
}

/// The desired state of the node and of its CiliumNode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The pools to allocate from.
    pub(crate) pools: Vec<NodePool>,
    /// `spec.ipam.pools`.
    pub(crate) desired: Value,
    /// Ranges that are given back from now on.
    pub(crate) released: Vec<IpNetwork>,
}

/// Ranges of a pool as they are written, in their order, and whether their first and last addresses are allocated.
type Written = (Vec<(Option<IpNetwork>, String)>, bool, bool);

impl NodePools {
    /// Takes over the ranges of the object.
    pub(crate) fn observe(&mut self, settings: &Settings, object: &CiliumNode) {
        let (mut pools, mut unusable, mut problems) = (Vec::<Pool>::new(), Vec::new(), Vec::new());
        for IpamPoolAllocation { pool, cidrs, allow_first_ip, allow_last_ip } in
            &object.spec.ipam.pools.allocated
        {
            let mut valid = Vec::new();
            for text in cidrs {
                let known = || pools.iter().flat_map(|pool| &pool.cidrs).chain(&valid);
                match usable(text, known()) {
                    Ok(cidr) if settings.families.contains(&Family::of(cidr.ip())) => valid.push(cidr),
                    Ok(_) => unusable.push((pool.to_string(), text.to_string())),
                    Err(reason) => {
                        problems.push(format!("spec.ipam.pools.allocated: pool {pool}: {text} {reason}"));
                        unusable.push((pool.to_string(), text.to_string()));
                    }
                }
            }
            match pools.iter_mut().find(|known| known.name == *pool) {
                Some(known) => known.cidrs.extend(valid),
                None => pools.push(Pool {
                    name: pool.to_string(),
                    cidrs: valid,
                    allow_first_ip: *allow_first_ip,
                    allow_last_ip: *allow_last_ip,
                }),
            }
        }
        (self.observed, self.unusable, self.problems) = (pools, unusable, problems);
        let present: BTreeSet<IpNetwork> =
            self.observed.iter().flat_map(|pool| pool.cidrs.iter().copied()).collect();
        self.releasing.retain(|cidr| present.contains(cidr));
        for (cidr, reclaimed) in &mut self.reclaimed {
            reclaimed.is_written |= present.contains(cidr);
        }
    }

    /// Records that a write was sent, before its outcome is known.
    pub(crate) fn sent(&mut self) {
        self.is_in_doubt = true;
    }

    /// Takes over the object as a write has left it.
    pub(crate) fn written(&mut self, settings: &Settings, object: &CiliumNode) {
        self.is_in_doubt = false;
        self.observe(settings, object);
    }

    /// Keeps a range that was to be given back: an address of it has been allocated meanwhile.
    pub(crate) fn keep(&mut self, cidr: IpNetwork) {
        self.releasing.remove(&cidr);
    }

    /// Whether the pool has a range of the family to allocate from.
    pub(crate) fn has(&self, pool: &str, family: Family) -> bool {
        self.observed
            .iter()
            .any(|known| known.name == pool && known.of(family).any(|cidr| self.is_usable(cidr)))
    }

    /// Describes the ranges by pool.
    pub(crate) fn summary(&self) -> String {
        let pool = |pool: &Pool| format!("{}: {}", pool.name, pool.cidrs.len());
        let pools: Vec<String> = self.observed.iter().map(pool).collect();
        format!("Ranges by pool: {}", if pools.is_empty() { "none".to_owned() } else { pools.join(", ") })
    }

    /// Describes the ranges that were written again.
    pub(crate) fn reclaimed(&self) -> Vec<String> {
        self.reclaimed.iter().map(|(cidr, reclaimed)| format!("{cidr} of pool {}", reclaimed.pool)).collect()
    }

    fn is_usable(&self, cidr: IpNetwork) -> bool {
        !self.releasing.contains(&cidr) && !self.reclaimed.contains_key(&cidr)
    }

    /// Decides what is requested, given back and taken back.
    pub(crate) fn plan(&mut self, settings: &Settings, usage: &Usage) -> Plan {
        self.reclaim(usage);
        let mut requested: BTreeMap<String, BTreeMap<&'static str, u64>> = BTreeMap::new();
        let named = usage.needed.keys().map(|(pool, _)| pool.to_string());
        let names: BTreeSet<String> = named
            .chain(settings.pre_allocation.keys().cloned())
            .chain(self.observed.iter().map(|pool| pool.name.clone()))
            .collect();
        let mut released = Vec::new();
        for name in &names {
            for &family in &settings.families {
                let pre_allocation = settings.pre_allocation.get(name).copied().unwrap_or_default();
                let needed = demand(usage.needs(name, family), pre_allocation);
                if let Some(pool) = self.observed.iter().find(|pool| pool.name == *name).cloned() {
                    self.take_back(&pool, family, needed);
                    released.extend(self.release(&pool, family, needed, usage));
                }
                // The operator counts reclaimed ranges, whose free addresses are of no use here.
                let needed = needed.saturating_add(self.reserved(name, family, usage));
                if needed > 0 {
                    let member = if family == Family::V4 { "ipv4-addrs" } else { "ipv6-addrs" };
                    requested.entry(name.clone()).or_default().insert(member, needed);
                }
            }
        }
        let requested = requested.iter().map(|(pool, needed)| json!({"pool": pool, "needed": needed}));
        let desired = pools_value(requested.collect(), self.allocated());
        let pools = self.observed.iter().map(|pool| NodePool {
            name: pool.name.clone(),
            cidrs: pool.cidrs.iter().copied().filter(|cidr| self.is_usable(*cidr)).collect(),
            allow_first_ip: pool.allow_first_ip,
            allow_last_ip: pool.allow_last_ip,
        });
        let pools = pools.filter(|pool| !pool.cidrs.is_empty()).collect();
        Plan { pools, desired, released }
    }

    /// Adds ranges in use that the object has lost, each once: a restored cluster has an older object, and another node must
    /// not get the range. One that the operator removes again is gone.
    fn reclaim(&mut self, usage: &Usage) {
        for (pool, cidr) in &usage.lost {
            if !self.reclaimed.contains_key(cidr) && !self.holds(*cidr) {
                self.reclaimed.insert(*cidr, Reclaimed { pool: pool.clone(), is_written: false });
            }
        }
        let vacant: Vec<IpNetwork> =
            self.reclaimed.keys().copied().filter(|cidr| usage.is_vacant(*cidr)).collect();
        for cidr in vacant {
            self.reclaimed.remove(&cidr);
            if self.holds(cidr) {
                self.releasing.insert(cidr);
            }
        }
    }

    fn holds(&self, cidr: IpNetwork) -> bool {
        self.observed.iter().any(|pool| pool.cidrs.contains(&cidr))
    }

    /// Returns how many addresses of reclaimed ranges of a pool are free.
    fn reserved(&self, pool: &str, family: Family, usage: &Usage) -> u64 {
        let Some(pool) = self.observed.iter().find(|known| known.name == pool) else { return 0 };
        let reclaimed = pool.of(family).filter(|cidr| self.reclaimed.contains_key(cidr));
        let free = reclaimed.map(|cidr| pool.capacity(cidr).saturating_sub(usage.count(cidr).into()));
        u64::try_from(free.sum::<u128>()).unwrap_or(u64::MAX)
    }

    /// Takes back ranges on their way out, as far as they are needed.
    fn take_back(&mut self, pool: &Pool, family: Family, needed: u64) {
        if self.is_in_doubt {
            return;
        }
        let usable = pool.of(family).filter(|cidr| self.is_usable(*cidr));
        let mut capacity: u128 = usable.map(|cidr| pool.capacity(cidr)).sum();
        for cidr in pool.of(family) {
            if capacity < needed.into() && self.releasing.remove(&cidr) {
                capacity += pool.capacity(cidr);
            }
        }
    }

    /// Gives back ranges without addresses, from the last one, while the others cover the demand.
    fn release(&mut self, pool: &Pool, family: Family, needed: u64, usage: &Usage) -> Vec<IpNetwork> {
        let usable: Vec<IpNetwork> = pool.of(family).filter(|cidr| self.is_usable(*cidr)).collect();
        let mut capacity: u128 = usable.iter().map(|cidr| pool.capacity(*cidr)).sum();
        let mut released = Vec::new();
        for &cidr in usable.iter().rev() {
            let rest = capacity - pool.capacity(cidr);
            if rest >= needed.into() && usage.is_vacant(cidr) {
                capacity = rest;
                self.releasing.insert(cidr);
                released.push(cidr);
            }
        }
        released
    }

    /// Returns `allocated`: what is held, without what is given back.
    fn allocated(&self) -> Vec<Value> {
        let mut pools: BTreeMap<&str, Written> = BTreeMap::new();
        for pool in &self.observed {
            let (cidrs, first, last) = pools.entry(&pool.name).or_default();
            let kept = pool.cidrs.iter().filter(|cidr| !self.releasing.contains(cidr));
            cidrs.extend(kept.map(|cidr| (Some(*cidr), cidr.to_string())));
            (*first, *last) = (pool.allow_first_ip, pool.allow_last_ip);
        }
        for (pool, text) in &self.unusable {
            pools.entry(pool).or_default().0.push((None, text.clone()));
        }
        for (cidr, reclaimed) in &self.reclaimed {
            if !reclaimed.is_written && !self.holds(*cidr) {
                pools.entry(&reclaimed.pool).or_default().0.push((Some(*cidr), cidr.to_string()));
            }
        }
        let pools = pools.into_iter().filter(|(_, (cidrs, ..))| !cidrs.is_empty());
        let object = pools.map(|(pool, (mut cidrs, first, last))| {
            cidrs.sort();
            let cidrs: Vec<String> = cidrs.into_iter().map(|(_, text)| text).collect();
            let mut object = json!({"pool": pool, "cidrs": cidrs});
            if first {
                object["allowFirstIP"] = true.into();
            }
            if last {
                object["allowLastIP"] = true.into();
            }
            object
        });
        object.collect()
    }
}

/// Parses a range that overlaps no other one.
fn usable<'c>(text: &str, mut known: impl Iterator<Item = &'c IpNetwork>) -> Result<IpNetwork, String> {
    let parsed: Option<IpNetwork> = text.contains('/').then(|| text.parse().ok()).flatten();
    let cidr = parsed.and_then(|cidr| IpNetwork::new(cidr.network(), cidr.prefix()).ok());
    let cidr = cidr.ok_or("is no CIDR; it is not used")?;
    let overlaps = |other: &&IpNetwork| other.contains(cidr.network()) || cidr.contains(other.network());
    match known.find(overlaps) {
        None => Ok(cidr),
        Some(other) => Err(format!("overlaps {other}; it is not used")),
    }
}

/// Returns the number of addresses to request for a number of used ones, as in Cilium: a multiple of the pre-allocation with
/// at least as many free ones, so that small changes of use change nothing.
pub(crate) fn demand(needed: u64, pre_allocation: u64) -> u64 {
    match pre_allocation {
        0 => needed,
        p if needed.is_multiple_of(p) => needed + p,
        p => (needed / p + 2) * p,
    }
}

/// Returns `spec.ipam.pools`, without empty members.
fn pools_value(requested: Vec<Value>, allocated: Vec<Value>) -> Value {
    let mut pools = json!({});
    for (member, list) in [("requested", requested), ("allocated", allocated)] {
        if !list.is_empty() {
            pools[member] = list.into();
        }
    }
    pools
}

/// Returns `spec.ipam.pools` of an object in the order that this agent writes, to compare both.
pub(crate) fn in_order(pools: &IpamPools) -> Value {
    let mut pools = pools.clone();
    pools.requested.sort_by(|a, b| a.pool.cmp(&b.pool));
    pools.allocated.sort_by(|a, b| a.pool.cmp(&b.pool));
    for pool in &mut pools.allocated {
        pool.cidrs.sort_by_key(|text| (text.parse::<IpNetwork>().ok(), text.clone()));
    }
    serde_json::to_value(pools).unwrap_or_default()
}

#[cfg(test)]
#[path = "pools_tests.rs"]
mod tests;
