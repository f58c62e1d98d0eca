//! Which ranges of pools nodes have, as a pure function of the objects and their order.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use k8s_types::SmolStr;
use k8s_types::cilium::{CiliumPodIPPool, IpamPoolAllocation, IpamPools, PoolFamily};
use serde_json::{Value, json};

use crate::cidr_set::{CidrSet, canonical, overlap};

/// The pools of the cluster, and the ranges that nodes have of them.
#[derive(Debug)]
pub(crate) struct MultiPool {
    /// Whether IPv4 and IPv6 are on.
    families: [bool; 2],
    pools: BTreeMap<SmolStr, Pool>,
    /// The owner of each range by its first address. No two ranges overlap.
    owners: BTreeMap<IpAddr, Owned>,
    /// The ranges of nodes in the order in which they got them.
    nodes: BTreeMap<SmolStr, Vec<Held>>,
}

#[derive(Clone, Debug)]
struct Owned {
    cidr: IpNetwork,
    node: SmolStr,
}

/// A range of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    pool: SmolStr,
    cidr: IpNetwork,
    /// Whether the object has had it: one that it loses afterwards is given back.
    is_seen: bool,
}

/// A pool as its object defines it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Pool {
    /// The ranges of IPv4 and IPv6.
    ranges: [Vec<Range>; 2],
    mask_sizes: [u8; 2],
    allow_first_ip: bool,
    allow_last_ip: bool,
    problems: Vec<String>,
}

/// A range that nodes get theirs of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    cidr: IpNetwork,
    /// The first address of the search: behind the last range that was allocated, so that one that was freed comes back late.
    next: u128,
}

/// The desired fields of a CiliumNode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Desired {
    /// `spec.ipam.pools.allocated`; none to leave it as it is.
    pub(crate) allocated: Option<Value>,
    /// `status.ipam.operator-status.error`.
    pub(crate) error: String,
    /// Whether the node has given a range back.
    pub(crate) has_freed: bool,
}

/// The index of a family.
fn family(cidr: IpNetwork) -> usize {
    usize::from(cidr.is_ipv6())
}

impl MultiPool {
    /// No pools and no nodes.
    pub(crate) fn new(ipv4: bool, ipv6: bool) -> MultiPool {
        let (pools, owners, nodes) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        MultiPool { families: [ipv4, ipv6], pools, owners, nodes }
    }

    /// Takes over a pool's object. Mask sizes and flags of a pool do not change: ranges of nodes have been counted by them.
    pub(crate) fn define(&mut self, object: &CiliumPodIPPool) {
        let name = &object.metadata.name;
        let mut pool = Pool::new(object);
        if let Some(known) = self.pools.get(name) {
            for at in 0..2 {
                let (before, now) = (known.mask_sizes[at], pool.mask_sizes[at]);
                if before != 0 && now != 0 && before != now {
                    pool.problems.push(format!("the mask size must not change from {before} to {now}"));
                    pool.mask_sizes[at] = before;
                    pool.ranges[at].clone_from(&known.ranges[at]);
                }
                for range in &mut pool.ranges[at] {
                    if let Some(same) = known.ranges[at].iter().find(|known| known.cidr == range.cidr) {
                        range.next = same.next;
                    }
                }
            }
            let flags = (known.allow_first_ip, known.allow_last_ip);
            if flags != (pool.allow_first_ip, pool.allow_last_ip) {
                pool.problems.push("allowFirstIP and allowLastIP must not change".to_owned());
                (pool.allow_first_ip, pool.allow_last_ip) = flags;
            }
        }
        self.pools.insert(name.clone(), pool);
    }

    /// Forgets a pool. Nodes keep ranges of it until they give them back.
    pub(crate) fn undefine(&mut self, name: &str) {
        self.pools.remove(name);
    }

    /// Returns the desired fields of a node, and takes for it what they name. Calling it again with the outcome changes nothing.
    pub(crate) fn sync(&mut self, node: &SmolStr, pools: &IpamPools) -> Desired {
        let (mut errors, mut kept) = (Vec::new(), Vec::new());
        let mut found = Vec::new();
        for pool in &pools.allocated {
            for text in &pool.cidrs {
                match text.parse::<IpNetwork>() {
                    Ok(cidr) => found.push((pool.pool.clone(), canonical(cidr))),
                    // Written back as it is: nothing is known about it.
                    Err(_) => {
                        errors.push(format!("unable to parse CIDR {text} of pool {}: remove it", pool.pool));
                        kept.push((pool.pool.clone(), text.to_string()));
                    }
                }
            }
        }
        let has_freed = self.release(node, &found);
        for (pool, cidr) in found {
            if let Err(error) = self.occupy(node, pool, cidr) {
                errors.push(error);
            }
        }
        for request in &pools.requested {
            let needed = [request.needed.ipv4_addrs, request.needed.ipv6_addrs];
            for (at, needed) in needed.into_iter().enumerate() {
                let needed = u128::try_from(needed).unwrap_or_default();
                if let Err(error) = self.supply(node, &request.pool, at, needed, &pools.allocated) {
                    errors.push(error);
                }
            }
        }
        let desired = self.allocated(node, &kept, &pools.allocated);
        let is_same = normalized(&desired) == normalized(&json!(pools.allocated));
        let error = match errors.is_empty() {
            true => String::new(),
            false => format!("ipam-multi-pool-sync allocation failed: {}", errors.join("; ")),
        };
        Desired { allocated: (!is_same).then_some(desired), error, has_freed }
    }

    /// Frees the ranges of a node that is gone; returns whether there were any.
    pub(crate) fn remove(&mut self, node: &str) -> bool {
        let Some(held) = self.nodes.remove(node) else { return false };
        for range in &held {
            self.owners.remove(&range.cidr.network());
        }
        !held.is_empty()
    }

    /// Frees ranges that the object has had and lost.
    fn release(&mut self, node: &SmolStr, found: &[(SmolStr, IpNetwork)]) -> bool {
        let Some(held) = self.nodes.get_mut(node) else { return false };
        let is_found =
            |range: &Held| found.iter().any(|(pool, cidr)| *pool == range.pool && *cidr == range.cidr);
        let (left, gone) =
            std::mem::take(held).into_iter().partition(|range| !range.is_seen || is_found(range));
        *held = left;
        for range in &gone {
            self.owners.remove(&range.cidr.network());
        }
        let gone: Vec<Held> = gone;
        !gone.is_empty()
    }

    /// Takes a range that the object names for the node, of whatever pool. One that overlaps another range is not the node's.
    fn occupy(&mut self, node: &SmolStr, pool: SmolStr, cidr: IpNetwork) -> Result<(), String> {
        let held = self.nodes.entry(node.clone()).or_default();
        if let Some(known) = held.iter_mut().find(|known| known.pool == pool && known.cidr == cidr) {
            known.is_seen = true;
            return Ok(());
        }
        if let Some(other) = overlapping(&self.owners, cidr) {
            return Err(match other.node == *node {
                true => format!("CIDR {cidr} of pool {pool} overlaps {} of the same node", other.cidr),
                false => format!("CIDR {cidr} of pool {pool} overlaps {} of node {}", other.cidr, other.node),
            });
        }
        self.owners.insert(cidr.network(), Owned { cidr, node: node.clone() });
        held.push(Held { pool, cidr, is_seen: true });
        Ok(())
    }

    /// Allocates ranges of a pool until a node has this number of addresses.
    fn supply(
        &mut self,
        node: &SmolStr,
        name: &SmolStr,
        at: usize,
        needed: u128,
        before: &[IpamPoolAllocation],
    ) -> Result<(), String> {
        let protocol = ["ipv4", "ipv6"][at];
        let held = self.nodes.entry(node.clone()).or_default();
        let flags = flags(&self.pools, name, before);
        let pool = self.pools.get_mut(name);
        let of_pool = held.iter().filter(|range| range.pool == *name && family(range.cidr) == at);
        let mut available: u128 = of_pool.map(|range| capacity(range.cidr, flags)).sum();
        if available >= needed {
            return Ok(());
        }
        let Some(pool) = pool else {
            return Err(format!("cannot allocate from non-existing pool: {name}"));
        };
        if !self.families[at] {
            return Err(format!(
                "{protocol} of pool {name} is requested, but it is off by enable-{protocol}"
            ));
        }
        let mask = pool.mask_sizes[at];
        while available < needed {
            let owners = &self.owners;
            let Some(cidr) = pool.ranges[at].iter_mut().find_map(|range| range.allocate(mask, owners)) else {
                let problems = pool.problems.join(", ");
                let more = if problems.is_empty() { String::new() } else { format!(" ({problems})") };
                return Err(format!(
                    "{protocol} pool {name} is exhausted: the node has {available} of {needed} addresses{more}"
                ));
            };
            available += capacity(cidr, flags);
            self.owners.insert(cidr.network(), Owned { cidr, node: node.clone() });
            held.push(Held { pool: name.clone(), cidr, is_seen: false });
        }
        Ok(())
    }

    /// Returns `allocated` of a node.
    fn allocated(&self, node: &SmolStr, kept: &[(SmolStr, String)], before: &[IpamPoolAllocation]) -> Value {
        let mut pools: BTreeMap<&SmolStr, Vec<String>> = BTreeMap::new();
        for range in self.nodes.get(node).into_iter().flatten() {
            pools.entry(&range.pool).or_default().push(range.cidr.to_string());
        }
        for (pool, text) in kept {
            pools.entry(pool).or_default().push(text.clone());
        }
        let object = |(name, cidrs): (&SmolStr, Vec<String>)| {
            let mut object = json!({"pool": name, "cidrs": cidrs});
            let (first, last) = flags(&self.pools, name, before);
            if first {
                object["allowFirstIP"] = true.into();
            }
            if last {
                object["allowLastIP"] = true.into();
            }
            object
        };
        pools.into_iter().map(object).collect()
    }

    /// Describes the pools: how many nodes have ranges, and how many ranges of each pool are given.
    pub(crate) fn summary(&self) -> String {
        let count = self.nodes.values().filter(|held| !held.is_empty()).count();
        let mut counts: BTreeMap<&SmolStr, usize> = self.pools.keys().map(|name| (name, 0)).collect();
        for range in self.nodes.values().flatten() {
            *counts.entry(&range.pool).or_default() += 1;
        }
        let pools = counts.into_iter().map(|(name, count)| format!("{name}: {count}"));
        format!("{count} nodes have ranges; by pool {}", pools.collect::<Vec<_>>().join(", "))
    }

    /// Describes what is wrong with pools, and ranges of nodes that are of no pool any more.
    pub(crate) fn problems(&self) -> Vec<String> {
        let wrong = self.pools.iter().filter(|(_, pool)| !pool.problems.is_empty());
        let mut problems: Vec<String> =
            wrong.map(|(name, pool)| format!("pool {name}: {}", pool.problems.join(", "))).collect();
        for (node, held) in &self.nodes {
            for range in held.iter().filter(|range| self.is_orphan(range)) {
                problems.push(format!("node {node}: {} is not of pool {} any more", range.cidr, range.pool));
            }
        }
        problems
    }

    fn is_orphan(&self, held: &Held) -> bool {
        let pool = self.pools.get(&held.pool);
        let contains = |range: &Range| {
            range.cidr.prefix() <= held.cidr.prefix() && range.cidr.contains(held.cidr.network())
        };
        pool.is_none_or(|pool| !pool.ranges[family(held.cidr)].iter().any(contains))
    }
}

impl Pool {
    fn new(object: &CiliumPodIPPool) -> Pool {
        let spec = &object.spec;
        let mut pool = Pool {
            allow_first_ip: spec.allow_first_ip,
            allow_last_ip: spec.allow_last_ip,
            ..Pool::default()
        };
        for (at, ranges) in [&spec.ipv4, &spec.ipv6].into_iter().enumerate() {
            if let Some(PoolFamily { cidrs, mask_size }) = ranges {
                pool.mask_sizes[at] = *mask_size;
                cidrs.iter().for_each(|text| pool.add(at, text, *mask_size));
            }
        }
        pool
    }

    /// Adds a range; one that cannot be used is a problem and is left out.
    fn add(&mut self, at: usize, text: &str, mask: u8) {
        let parsed = text.parse().ok().map(canonical).filter(|cidr| family(*cidr) == at);
        let Some(cidr) = parsed else {
            return self.problems.push(format!("{text} is no CIDR of {}", ["IPv4", "IPv6"][at]));
        };
        if let Err(error) = CidrSet::check(cidr, mask, "maskSize") {
            return self.problems.push(error.to_string());
        }
        if let Some(other) = self.ranges[at].iter().find(|other| overlap(other.cidr, cidr)) {
            return self.problems.push(format!("{cidr} overlaps {}", other.cidr));
        }
        self.ranges[at].push(Range { cidr, next: number(cidr.network()) });
    }
}

impl Range {
    /// Returns the next free range of this size. Cost: a look-up for each range that is passed.
    fn allocate(&mut self, mask: u8, owners: &BTreeMap<IpAddr, Owned>) -> Option<IpNetwork> {
        let (first, last) = (number(self.cidr.network()), number(self.cidr.broadcast()));
        let from = |start: u128, end: u128| {
            let mut at = start;
            loop {
                let cidr = IpNetwork::new(address(at, self.cidr), mask).ok()?;
                if cidr.network() != cidr.ip() || number(cidr.broadcast()) > last || at > end {
                    return None;
                }
                let Some(other) = overlapping(owners, cidr) else { return Some(cidr) };
                // Behind the larger of both.
                let end_of = number(cidr.broadcast()).max(number(other.cidr.broadcast()));
                at = end_of.checked_add(1)?;
            }
        };
        let found = from(self.next, last).or_else(|| from(first, self.next.saturating_sub(1)))?;
        self.next = number(found.broadcast()).checked_add(1).filter(|next| *next <= last).unwrap_or(first);
        Some(found)
    }
}

/// Returns whether the first and the last address of a pool's ranges are allocated; those of the object for a pool that is gone.
fn flags(pools: &BTreeMap<SmolStr, Pool>, name: &SmolStr, before: &[IpamPoolAllocation]) -> (bool, bool) {
    let defined = pools.get(name).map(|pool| (pool.allow_first_ip, pool.allow_last_ip));
    let known = || before.iter().find(|pool| pool.pool == *name);
    defined.or_else(|| known().map(|pool| (pool.allow_first_ip, pool.allow_last_ip))).unwrap_or_default()
}

/// Returns a range that overlaps this one.
fn overlapping(owners: &BTreeMap<IpAddr, Owned>, cidr: IpNetwork) -> Option<&Owned> {
    let before = owners.range(..=cidr.network()).next_back().map(|(_, owned)| owned);
    before
        .filter(|owned| overlap(owned.cidr, cidr))
        .or_else(|| owners.range(cidr.network()..=cidr.broadcast()).next().map(|(_, owned)| owned))
}

/// Returns the number of addresses that an agent may allocate: the first and the last one of a range are not, unless allowed.
fn capacity(cidr: IpNetwork, (first, last): (bool, bool)) -> u128 {
    let bits = if cidr.is_ipv4() { 32 } else { 128 };
    let size = 1_u128.checked_shl(u32::from(bits - cidr.prefix())).unwrap_or(u128::MAX);
    match size {
        1 | 2 => size,
        size => size - 2 + u128::from(first) + u128::from(last),
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// Returns the address of this number, of the family of a range.
fn address(number: u128, family: IpNetwork) -> IpAddr {
    match family {
        IpNetwork::V4(_) => IpAddr::V4(u32::try_from(number).unwrap_or(u32::MAX).into()),
        IpNetwork::V6(_) => IpAddr::V6(number.into()),
    }
}

/// Returns `allocated` in an order that does not depend on its writer.
pub(crate) fn normalized(allocated: &Value) -> Value {
    let mut pools: BTreeMap<String, Value> = BTreeMap::new();
    for pool in allocated.as_array().into_iter().flatten() {
        let mut pool = pool.clone();
        if let Some(cidrs) = pool["cidrs"].as_array_mut() {
            cidrs.sort_by_key(Value::to_string);
        }
        pools.insert(pool["pool"].to_string(), pool);
    }
    pools.into_values().collect()
}

#[cfg(test)]
#[path = "multi_pool_tests.rs"]
mod tests;
