//! The addresses that the node may allocate, by pool.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::address::DEFAULT_POOL;
use crate::error::Error;
use crate::listed::Listed;
use crate::range::{Family, PodRange};

/// The pools of the node, an immutable value: the allocator reads the current one at each request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pools {
    pools: BTreeMap<Arc<str>, Pool>,
    /// Families that are on and have no range yet, with the reason.
    waits: BTreeMap<Family, Arc<str>>,
    /// The families that are on although no range may show it: pools that the cluster assigns on request, and listed ones.
    on_request: Option<Vec<Family>>,
}

/// The addresses of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pool {
    /// Ranges to allocate from.
    pub ranges: Vec<PodRange>,
    /// Ranges that are no longer the node's: their addresses stay with their owners, and nothing is allocated from them.
    pub withdrawn: Vec<PodRange>,
    /// Single addresses instead of ranges.
    pub listed: Option<Listed>,
}

impl Pool {
    /// Returns the ranges of a family to allocate from.
    pub fn of(&self, family: Family) -> impl Iterator<Item = &PodRange> {
        self.ranges.iter().filter(move |range| range.family() == family)
    }

    /// Whether an address is one of the pool, of a withdrawn range included.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.ranges.iter().chain(&self.withdrawn).any(|range| range.contains(address))
            || self.listed.as_ref().is_some_and(|listed| listed.contains(address))
    }

    /// Whether addresses of a family are allocated from it, as long as there are free ones.
    pub(crate) fn has(&self, family: Family) -> bool {
        self.listed.is_some() || self.of(family).next().is_some()
    }

    /// Whether an address counts for the capacity.
    pub(crate) fn gives(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(address))
            || self.listed.as_ref().is_some_and(|listed| listed.contains(address))
    }

    /// Returns how many addresses of a family it has.
    pub(crate) fn capacity(&self, family: Family) -> u128 {
        let listed = self.listed.as_ref().map_or(0, |listed| listed.count(family));
        listed + self.of(family).map(|range| range.capacity()).sum::<u128>()
    }
}

impl Pools {
    /// The pools of these names.
    pub fn new(pools: impl IntoIterator<Item = (Arc<str>, Pool)>) -> Pools {
        Pools { pools: pools.into_iter().collect(), ..Pools::default() }
    }

    /// One pool, `default`, of the given CIDRs; a family without a CIDR is off.
    pub fn of_ranges(cidrs: impl IntoIterator<Item = IpNetwork>) -> Pools {
        let pool = Pool { ranges: cidrs.into_iter().map(PodRange::new).collect(), ..Pool::default() };
        Pools::new([(DEFAULT_POOL.into(), pool)])
    }

    /// One pool, `default`, of single addresses, with these families on.
    pub fn of_listed(listed: Listed, families: Vec<Family>) -> Pools {
        let pool = Pool { listed: Some(listed), ..Pool::default() };
        Pools::new([(DEFAULT_POOL.into(), pool)]).on_request(families)
    }

    /// The same whose listed pool gives these addresses only on request: the router has had them.
    pub(crate) fn keeping(mut self, kept: &[IpAddr]) -> Pools {
        for pool in self.pools.values_mut() {
            pool.listed = pool.listed.take().map(|listed| listed.keeping(kept.to_vec()));
        }
        self
    }

    /// Returns the list, if the pool is one of single addresses.
    pub(crate) fn listed(&self) -> Option<&Listed> {
        self.pools.values().find_map(|pool| pool.listed.as_ref())
    }

    /// Marks a family as on although it has no range yet, with the reason.
    #[must_use]
    pub fn waiting(mut self, family: Family, reason: &str) -> Pools {
        self.waits.insert(family, reason.into());
        self
    }

    /// Marks the pools as assigned on request, so that a pool may be missing while its family is on.
    #[must_use]
    pub fn on_request(mut self, families: Vec<Family>) -> Pools {
        self.on_request = Some(families);
        self
    }

    /// Whether pools are assigned on request.
    pub(crate) fn is_multi(&self) -> bool {
        self.on_request.is_some()
    }

    /// Whether addresses of a family are allocated from a pool.
    pub(crate) fn has(&self, pool: &str, family: Family) -> bool {
        !self.waits.contains_key(&family) && self.get(pool).is_some_and(|pool| pool.has(family))
    }

    /// Returns a pool.
    pub fn get(&self, name: &str) -> Option<&Pool> {
        self.pools.get(name)
    }

    /// Returns the pools by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Pool)> {
        self.pools.iter()
    }

    /// Returns the ranges of a family of all pools.
    pub fn of(&self, family: Family) -> impl Iterator<Item = &PodRange> {
        self.pools.values().flat_map(move |pool| pool.of(family))
    }

    /// Whether the family is on.
    pub fn enabled(&self, family: Family) -> bool {
        let is_requested = self.on_request.as_ref().is_some_and(|families| families.contains(&family));
        is_requested || self.waits.contains_key(&family) || self.of(family).next().is_some()
    }

    /// Returns why the family has no range yet.
    pub fn wait(&self, family: Family) -> Option<&Arc<str>> {
        self.waits.get(&family)
    }

    /// Returns the name of the pool that an address is of.
    pub fn pool_of(&self, address: IpAddr) -> Option<&Arc<str>> {
        self.pools.iter().find(|(_, pool)| pool.contains(address)).map(|(name, _)| name)
    }

    /// Checks that an address can be allocated by its number.
    pub(crate) fn check(&self, address: IpAddr, owner: &str) -> Result<(), Error> {
        let family = Family::of(address);
        if let Some(reason) = self.wait(family) {
            return Err(Error::Waiting { family, reason: reason.clone() });
        }
        if let (true, Some(listed)) = (self.enabled(family), self.listed()) {
            return match listed.is_available(address, owner) {
                true => Ok(()),
                false => Err(Error::NotListed(address)),
            };
        }
        let first = self.of(family).next().ok_or(Error::Disabled(family))?;
        match self.of(family).any(|range| range.contains(address)) {
            true => Ok(()),
            false => Err(Error::NotInRange(first.cidr())),
        }
    }
}
