//! The addresses of all services: the pure core.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_types::{Key, SmolStr};

use crate::pool::{Pool, find_conflicts};
use crate::range::Family;
use crate::request::{Conflict, Request};

/// Which service holds which addresses of which pool.
///
/// An address is held by one service, or by several that may share it. [`upsert`](Allocator::upsert) keeps and imports
/// addresses, [`satisfy_all`](Allocator::satisfy_all) gives those that are missing: at a start the first is called for all services
/// before the second for any, so that nothing in use is given.
#[derive(Debug, Default)]
pub(crate) struct Allocator {
    pools: BTreeMap<SmolStr, Pool>,
    services: BTreeMap<Key, Service>,
    holders: BTreeMap<IpAddr, BTreeSet<Key>>,
    /// Services by their sharing key.
    sharing: BTreeMap<SmolStr, BTreeSet<Key>>,
    /// Services that lack addresses.
    waiting: BTreeSet<Turn>,
    /// Changes of pools and of held addresses.
    revision: u64,
}

/// The order in which services get addresses: those that request certain ones first, then the older ones.
type Turn = (bool, i64, Key);

#[derive(Debug)]
struct Service {
    request: Request,
    held: Vec<IpAddr>,
    failure: Option<Failure>,
    /// Whether it may have its addresses, by its request and the pools as they are.
    is_checked: bool,
}

/// Why a service lacks an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A requested address cannot be read.
    Invalid(String),
    /// The service has no addresses of the family of a requested one.
    OtherFamily(IpAddr),
    /// No pool has a requested address.
    NoPoolOf(IpAddr),
    /// Pools have a requested address but give none.
    PoolGivesNone(IpAddr),
    /// The pools of a requested address do not select the service.
    SelectorMismatch(IpAddr),
    /// Another service has a requested address.
    AlreadyAllocated(IpAddr),
    /// Another service has a requested address and shares it, but not with this one.
    Incompatible(IpAddr, &'static str),
    /// No pool of the family selects the service and gives addresses.
    NoPool(Family),
    /// All such pools are used up.
    OutOfIps(Family),
}

impl Failure {
    /// Returns the reason of the condition.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Failure::Invalid(_)
            | Failure::OtherFamily(_)
            | Failure::NoPoolOf(_)
            | Failure::PoolGivesNone(_)
            | Failure::NoPool(_) => "no_pool",
            Failure::SelectorMismatch(_) => "pool_selector_mismatch",
            Failure::AlreadyAllocated(_) => "already_allocated",
            Failure::Incompatible(..) => "already_allocated_incompatible_service",
            Failure::OutOfIps(_) => "out_of_ips",
        }
    }

    /// Returns the message of the condition.
    pub(crate) fn message(&self) -> String {
        match self {
            Failure::Invalid(text) => format!("The requested IP '{text}' is no address"),
            Failure::OtherFamily(ip) => {
                let family = Family::of(*ip);
                format!("The service has no {family} addresses, and requests the IP '{ip}'")
            }
            Failure::NoPoolOf(ip) => format!("No pool exists with a CIDR containing '{ip}'"),
            Failure::PoolGivesNone(ip) => {
                format!("The pool of the IP '{ip}' is disabled, or conflicts with another pool")
            }
            Failure::SelectorMismatch(ip) => {
                format!("The pool of the IP '{ip}' does not select the service")
            }
            Failure::AlreadyAllocated(ip) => {
                format!("The IP '{ip}' is already allocated to another service")
            }
            Failure::Incompatible(ip, reason) => {
                format!("The IP '{ip}' is already allocated to an incompatible service. Reason: {reason}")
            }
            Failure::NoPool(family) => format!(
                "There are no enabled CiliumLoadBalancerIPPools with {family} addresses that match this service"
            ),
            Failure::OutOfIps(family) => format!(
                "All enabled CiliumLoadBalancerIPPools that match this service ran out of allocatable {family} IPs"
            ),
        }
    }
}

/// The addresses of a pool, counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolCounts {
    pub(crate) total: u128,
    pub(crate) used: u128,
    pub(crate) conflict: String,
}

impl Allocator {
    /// Defines a pool. Returns whether it is another one than before; then [`pools_changed`](Allocator::pools_changed) has to follow.
    pub(crate) fn define(&mut self, name: SmolStr, pool: Pool) -> bool {
        let has_changed = self.pools.get(&name).is_none_or(|known| known.definition != pool.definition);
        if has_changed {
            self.pools.insert(name, pool);
        }
        has_changed
    }

    /// Removes a pool. Returns whether there was one; then [`pools_changed`](Allocator::pools_changed) has to follow.
    pub(crate) fn undefine(&mut self, name: &str) -> bool {
        self.pools.remove(name).is_some()
    }

    /// Finds conflicts of the pools. The services have to be upserted again.
    pub(crate) fn pools_changed(&mut self) {
        find_conflicts(&mut self.pools);
        self.revision += 1;
        self.services.values_mut().for_each(|service| service.is_checked = false);
    }

    pub(crate) fn has_pools(&self) -> bool {
        !self.pools.is_empty()
    }

    /// Forgets all services.
    pub(crate) fn forget_services(&mut self) {
        let (pools, revision) = (std::mem::take(&mut self.pools), self.revision + 1);
        *self = Allocator { pools, revision, ..Allocator::default() };
    }

    /// Takes note of a service and of the addresses in its status: drops addresses that it may not have any more, and imports
    /// those that it may have. Returns whether others may profit: its request is another one than before, or it has lost an address.
    pub(crate) fn upsert(&mut self, key: &Key, request: Request, present: &[IpAddr]) -> bool {
        let known = self.services.remove(key);
        let has_changed = known.as_ref().is_none_or(|known| known.request != request);
        let is_new = known.is_none();
        let mut is_checked = false;
        let (before, failure) = known.map_or((Vec::new(), None), |known| {
            self.waiting.remove(&turn(key, &known.request));
            if has_changed {
                self.unshare(key, &known.request);
            }
            is_checked = known.is_checked && !has_changed;
            (known.held, known.failure)
        });
        if has_changed && !request.sharing_key.is_empty() {
            self.sharing.entry(request.sharing_key.clone()).or_default().insert(key.clone());
        }
        let mut held = Vec::new();
        let mut has_lost = false;
        for ip in before {
            match is_checked || self.may_keep(key, &request, ip) {
                true => held.push(ip),
                false => {
                    self.release(key, ip);
                    has_lost = true;
                }
            }
        }
        for ip in present {
            if !held.contains(ip) && self.may_keep(key, &request, *ip) {
                self.hold(key, *ip);
                held.push(*ip);
            }
        }
        self.waiting.insert(turn(key, &request));
        self.services.insert(key.clone(), Service { request, held, failure, is_checked: true });
        (has_changed && !is_new) || has_lost
    }

    /// Forgets a service. Returns the addresses that it held, if it was known.
    pub(crate) fn remove(&mut self, key: &Key) -> Option<Vec<IpAddr>> {
        let service = self.services.remove(key)?;
        self.waiting.remove(&turn(key, &service.request));
        self.unshare(key, &service.request);
        for ip in &service.held {
            self.release(key, *ip);
        }
        Some(service.held)
    }

    /// Gives these services the addresses that they lack, in their turns, and others those that they can share with them. Returns
    /// the services of which addresses or failure have changed.
    pub(crate) fn satisfy(&mut self, keys: &BTreeSet<Key>) -> BTreeSet<Key> {
        let turns = self.waiting.iter().filter(|(_, _, key)| keys.contains(key)).cloned().collect();
        let mut changed = BTreeSet::new();
        if self.take_turns(turns, &mut changed) {
            changed.extend(self.satisfy_all());
        }
        changed
    }

    /// Gives all services the addresses that they lack, as far as there are some. Returns the services of which addresses or
    /// failure have changed.
    pub(crate) fn satisfy_all(&mut self) -> BTreeSet<Key> {
        let mut changed = BTreeSet::new();
        // An address that can be shared serves those whose turn was before.
        while self.take_turns(self.waiting.iter().cloned().collect(), &mut changed) {}
        changed
    }

    /// Returns whether a service has got an address that it shares.
    fn take_turns(&mut self, turns: Vec<Turn>, changed: &mut BTreeSet<Key>) -> bool {
        let mut has_shared = false;
        for (_, _, key) in turns {
            let Some(mut service) = self.services.remove(&key) else { continue };
            let count = service.held.len();
            let failure = self.give(&key, &mut service);
            if failure.is_none() {
                self.waiting.remove(&turn(&key, &service.request));
            }
            let has_got = count != service.held.len();
            has_shared |= has_got && !service.request.sharing_key.is_empty();
            let is_other = has_got || service.failure != failure;
            service.failure = failure;
            self.services.insert(key.clone(), service);
            if is_other {
                changed.insert(key);
            }
        }
        has_shared
    }

    /// Returns the addresses of a service, and why it lacks some.
    pub(crate) fn outcome(&self, key: &Key) -> Option<(&[IpAddr], Option<&Failure>)> {
        self.services.get(key).map(|service| (service.held.as_slice(), service.failure.as_ref()))
    }

    /// Returns a number that is another one after each change of what [`pools`](Allocator::pools) returns.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the names of pools, with their counts and what is wrong in their objects. Linear in the held addresses.
    pub(crate) fn pools(&self) -> impl Iterator<Item = (&SmolStr, PoolCounts, &[String])> {
        self.pools.iter().map(|(name, pool)| {
            let (total, used) = (pool.total(), pool.used(&self.holders));
            let counts = PoolCounts { total, used, conflict: pool.conflict.clone() };
            (name, counts, pool.problems.as_slice())
        })
    }

    /// Returns the number of services, of those that lack addresses, and of addresses.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        (self.services.len(), self.waiting.len(), self.holders.len())
    }

    fn give(&mut self, key: &Key, service: &mut Service) -> Option<Failure> {
        match service.request.ips.is_empty() && service.request.invalid.is_empty() {
            true => self.give_any(key, service),
            false => self.give_requested(key, service),
        }
    }

    fn give_requested(&mut self, key: &Key, service: &mut Service) -> Option<Failure> {
        let mut failure = service.request.invalid.first().cloned().map(Failure::Invalid);
        for ip in &service.request.ips {
            if service.held.contains(ip) {
                continue;
            }
            match self.may_get(key, &service.request, *ip) {
                Ok(()) => {
                    self.hold(key, *ip);
                    service.held.push(*ip);
                }
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        failure
    }

    fn give_any(&mut self, key: &Key, service: &mut Service) -> Option<Failure> {
        let mut failure = None;
        for family in service.request.families.clone() {
            if service.held.iter().any(|ip| Family::of(*ip) == family) {
                continue;
            }
            match self.any_of(key, &service.request, family) {
                Ok(ip) => {
                    self.hold(key, ip);
                    service.held.push(ip);
                }
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        failure
    }

    /// Returns an address that the service can share, else the first free one.
    fn any_of(&mut self, key: &Key, request: &Request, family: Family) -> Result<IpAddr, Failure> {
        if let Some(others) = self.sharing.get(&request.sharing_key) {
            let held = |other: &Key| self.services.get(other).map_or(&[][..], |other| other.held.as_slice());
            let shared: BTreeSet<IpAddr> =
                others.iter().flat_map(held).copied().filter(|ip| Family::of(*ip) == family).collect();
            if let Some(ip) = shared.into_iter().find(|ip| self.may_get(key, request, *ip).is_ok()) {
                return Ok(ip);
            }
        }
        let mut failure = Failure::NoPool(family);
        for pool in self.pools.values_mut() {
            if pool.gives_new() && pool.has_family(family) && pool.selects(request) {
                match pool.next_free(family, &self.holders) {
                    Some(ip) => return Ok(ip),
                    None => failure = Failure::OutOfIps(family),
                }
            }
        }
        Err(failure)
    }

    /// Whether a service may keep an address that it has.
    fn may_keep(&self, key: &Key, request: &Request, ip: IpAddr) -> bool {
        request.accepts(ip)
            && self.pools.values().any(|pool| pool.contains(ip) && pool.selects(request))
            && self.conflict(key, request, ip).is_none()
    }

    /// Whether a service may get a certain address.
    fn may_get(&self, key: &Key, request: &Request, ip: IpAddr) -> Result<(), Failure> {
        if !request.families.contains(&Family::of(ip)) {
            return Err(Failure::OtherFamily(ip));
        }
        let mut failure = Failure::NoPoolOf(ip);
        let mut is_given = false;
        for pool in self.pools.values().filter(|pool| pool.contains(ip)) {
            match (pool.gives_new(), pool.selects(request)) {
                (true, true) => is_given = true,
                (true, false) => failure = Failure::SelectorMismatch(ip),
                (false, _) if failure == Failure::NoPoolOf(ip) => failure = Failure::PoolGivesNone(ip),
                (false, _) => {}
            }
        }
        match self.conflict(key, request, ip) {
            _ if !is_given => Err(failure),
            None => Ok(()),
            Some(Conflict::NotShared) => Err(Failure::AlreadyAllocated(ip)),
            Some(Conflict::Incompatible(reason)) => Err(Failure::Incompatible(ip, reason)),
        }
    }

    /// Returns why other services that hold an address do not share it with this one.
    fn conflict(&self, key: &Key, request: &Request, ip: IpAddr) -> Option<Conflict> {
        let others = self.holders.get(&ip)?.iter().filter(|other| *other != key);
        others.filter_map(|other| self.services.get(other)).find_map(|other| request.conflict(&other.request))
    }

    fn hold(&mut self, key: &Key, ip: IpAddr) {
        self.revision += 1;
        self.holders.entry(ip).or_default().insert(key.clone());
    }

    fn release(&mut self, key: &Key, ip: IpAddr) {
        self.revision += 1;
        let Some(holders) = self.holders.get_mut(&ip) else { return };
        holders.remove(key);
        if holders.is_empty() {
            self.holders.remove(&ip);
            self.pools.values_mut().for_each(|pool| pool.released(ip));
        }
    }

    fn unshare(&mut self, key: &Key, request: &Request) {
        if let Some(others) = self.sharing.get_mut(&request.sharing_key) {
            others.remove(key);
            if others.is_empty() {
                self.sharing.remove(&request.sharing_key);
            }
        }
    }
}

fn turn(key: &Key, request: &Request) -> Turn {
    (request.ips.is_empty(), request.created, key.clone())
}

#[cfg(test)]
#[path = "allocator_tests.rs"]
mod tests;
