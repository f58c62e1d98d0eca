//! Allocation and release of addresses: transactions on the table `ipam`, without clock or randomness of their own.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;
use statedb::{RwTable, TableTxn};

use crate::address::{Address, DEFAULT_POOL, Lease};
use crate::error::{Error, Holder};
use crate::listed::Listed;
use crate::pools::{Pool, Pools};
use crate::range::Family;

/// How long a released address stays in quarantine, unless the range has no other.
pub(crate) const QUARANTINE: Duration = Duration::from_secs(30);
/// How long an address that was allocated with `expiration: true` waits for its endpoint.
pub(crate) const EXPIRATION: Duration = Duration::from_secs(600);

/// The source of random offsets and unguessable tokens, which tests replace.
pub(crate) trait Randomness {
    /// Returns the offset at which the search in a range begins.
    fn offset(&mut self) -> u128;
    /// Returns a unique token.
    fn uuid(&mut self) -> String;
}

/// The writer of the table.
#[derive(Clone)]
pub(crate) struct Ledger {
    table: RwTable<Address>,
}

impl Ledger {
    pub(crate) fn new(table: RwTable<Address>) -> Ledger {
        Ledger { table }
    }

    /// Allocates one address of each of the families that are on, all or none, each of the pool that `pool_of` returns; with
    /// `expires`, they expire then unless an endpoint takes them over.
    ///
    /// `pools` is read within the transaction: a range that has left the pools before [`is_vacant`](Ledger::is_vacant) looks
    /// at it gives no address afterwards.
    pub(crate) fn allocate<P: Borrow<Pools>>(
        &self,
        pools: impl FnOnce() -> P,
        pool_of: &impl Fn(Family) -> Result<Arc<str>, Error>,
        families: &[Family],
        owner: &str,
        expires: Option<Instant>,
        randomness: &mut impl Randomness,
    ) -> Result<Vec<Address>, Error> {
        let owner: Arc<str> = owner.into();
        let mut txn = self.table.write();
        let pools = pools();
        let pools: &Pools = pools.borrow();
        let mut given = Vec::new();
        for &family in families {
            if !pools.enabled(family) {
                continue;
            }
            if let Some(reason) = pools.wait(family) {
                return Err(Error::Waiting { family, reason: reason.clone() });
            }
            // An error drops the transaction, and with it an address of the family before.
            let name = pool_of(family)?;
            let pool = pools.get(&name).filter(|pool| pool.has(family));
            let pool = pool.ok_or_else(|| Error::NoSuchPool { pool: name.clone(), family })?;
            let address = pick(&txn, pool, family, &owner, randomness.offset()).ok_or_else(|| {
                let full = exhausted(&txn, name.clone(), pool, family);
                match &pool.listed {
                    Some(listed) => Error::NoneListed { by: listed.by(), full: Box::new(full) },
                    None if pools.is_multi() => Error::Exhausted(Box::new(full)),
                    None => full,
                }
            })?;
            let lease = match expires {
                Some(at) => Lease::Expiring { uuid: randomness.uuid().into(), at },
                None => Lease::Held,
            };
            let row = Address { address, owner: owner.clone(), pool: name, lease };
            txn.insert(row.clone());
            given.push(row);
        }
        txn.commit();
        Ok(given)
    }

    /// Allocates a given address, if it is free.
    pub(crate) fn take<P: Borrow<Pools>>(
        &self,
        pools: impl FnOnce() -> P,
        address: IpAddr,
        owner: &str,
        lease: Lease,
    ) -> Result<(), Error> {
        let mut txn = self.table.write();
        let pools = pools();
        let pools: &Pools = pools.borrow();
        let is_allocated = txn.get(Address::by_address(address)).is_some_and(|row| row.allocated());
        if is_allocated && pools.listed().is_some() {
            return Err(Error::ListedInUse);
        }
        pools.check(address, owner)?;
        if is_allocated {
            return Err(Error::Allocated);
        }
        txn.insert(Address { address, owner: owner.into(), pool: pool_name(pools, address), lease });
        txn.commit();
        Ok(())
    }

    /// Reserves the address of an endpoint of the previous run, also outside of all ranges: they may come later.
    pub(crate) fn restore(
        &self,
        pools: &Pools,
        address: IpAddr,
        owner: &str,
        endpoint: u16,
    ) -> Result<(), Error> {
        let mut txn = self.table.write();
        match txn.get(Address::by_address(address)).map(|row| &row.lease) {
            None | Some(Lease::Resting { .. }) => {}
            Some(Lease::Endpoint(holder)) if *holder == endpoint => return Ok(()),
            Some(_) => return Err(Error::Allocated),
        }
        let (pool, lease) = (pool_name(pools, address), Lease::Endpoint(endpoint));
        txn.insert(Address { address, owner: owner.into(), pool, lease });
        txn.commit();
        Ok(())
    }

    /// Releases an address, if it has an owner; that of an endpoint only with `by_endpoint`.
    pub(crate) fn release(
        &self,
        address: IpAddr,
        by_endpoint: Option<u16>,
        now: Instant,
    ) -> Result<bool, Error> {
        let mut txn = self.table.write();
        let Some(row) = txn.get(Address::by_address(address)) else { return Ok(false) };
        match (&row.lease, by_endpoint) {
            (Lease::Resting { .. }, _) => return Ok(false),
            (Lease::Endpoint(_), None) => return Err(Error::InUse),
            // Another endpoint has taken the address over since.
            (Lease::Endpoint(holder), Some(id)) if *holder != id => return Ok(false),
            _ => {}
        }
        let row = Address { lease: Lease::Resting { since: now }, ..(**row).clone() };
        txn.insert(row);
        txn.commit();
        Ok(true)
    }

    /// Assigns addresses to an endpoint, all or none: they no longer expire and are released with the endpoint. A token must be
    /// that of the allocation. A free address of the ranges is allocated to the endpoint; one outside of them is ignored.
    pub(crate) fn hand_over<'a, P: Borrow<Pools>>(
        &self,
        pools: impl FnOnce() -> P,
        addresses: impl IntoIterator<Item = (IpAddr, Option<&'a str>)>,
        owner: &str,
        endpoint: u16,
    ) -> Result<(), Error> {
        let mut txn = self.table.write();
        let pools = pools();
        let pools: &Pools = pools.borrow();
        let mut rows = Vec::new();
        for (address, uuid) in addresses {
            let row = txn.get(Address::by_address(address));
            if !is_handed_over(pools, address, row.map(|row| &row.lease), uuid, owner, endpoint)? {
                continue;
            }
            // Keep the owner of the allocation: a restored endpoint may come under another name.
            let (owner, pool) = match row.filter(|row| row.allocated()) {
                Some(row) => (row.owner.clone(), row.pool.clone()),
                None => (owner.into(), pool_name(pools, address)),
            };
            rows.push(Address { address, owner, pool, lease: Lease::Endpoint(endpoint) });
        }
        if !rows.is_empty() {
            rows.into_iter().for_each(|row| drop(txn.insert(row)));
            txn.commit();
        }
        Ok(())
    }

    /// Whether no address of a range has a row, those in quarantine included: packets for their previous owners may still
    /// come. Waits for allocations in progress.
    pub(crate) fn is_vacant(&self, cidr: IpNetwork) -> bool {
        let txn = self.table.write();
        !txn.all().any(|row| cidr.contains(row.address))
    }

    /// Releases expired addresses and ends quarantines. Returns the expired ones and the next deadline.
    pub(crate) fn sweep(&self, now: Instant) -> (Vec<Address>, Option<Instant>) {
        let mut txn = self.table.write();
        let mut next: Option<Instant> = None;
        let mut expired = Vec::new();
        let mut rested = Vec::new();
        for row in txn.all() {
            let due = match row.lease {
                Lease::Expiring { at, .. } => at,
                Lease::Resting { since } => since + QUARANTINE,
                Lease::Held | Lease::Endpoint(_) => continue,
            };
            match (&row.lease, due <= now) {
                (_, false) => next = Some(next.map_or(due, |next| next.min(due))),
                (Lease::Expiring { .. }, true) => expired.push((**row).clone()),
                (_, true) => rested.push(row.address),
            }
        }
        for row in &expired {
            txn.insert(Address { lease: Lease::Resting { since: now }, ..row.clone() });
            next = Some(next.map_or(now + QUARANTINE, |next| next.min(now + QUARANTINE)));
        }
        for &address in &rested {
            txn.delete(Address::by_address(address));
        }
        // A commit without changes would still wake the readers of the table.
        if !expired.is_empty() || !rested.is_empty() {
            txn.commit();
        }
        (expired, next)
    }
}

/// Whether an endpoint gets an address with this lease, by the token of a request; false for one outside of the ranges.
fn is_handed_over(
    pools: &Pools,
    address: IpAddr,
    lease: Option<&Lease>,
    uuid: Option<&str>,
    owner: &str,
    endpoint: u16,
) -> Result<bool, Error> {
    match (lease, uuid) {
        (Some(Lease::Expiring { uuid: given, .. }), Some(uuid)) if **given != *uuid => {
            Err(Error::UuidMismatch)
        }
        // Also without a token: an address that an endpoint uses must not expire.
        (Some(Lease::Expiring { .. }), _) => Ok(true),
        (_, Some(_)) => Err(Error::NoTimer),
        (Some(Lease::Endpoint(other)), None) if *other != endpoint => Err(Error::Allocated),
        (Some(Lease::Held | Lease::Endpoint(_)), None) => Ok(true),
        (Some(Lease::Resting { .. }) | None, None) => {
            let is_ours = pools.pool_of(address).is_some();
            // One that is being released may be another node's soon.
            if is_ours && pools.listed().is_some_and(|listed| !listed.is_available(address, owner)) {
                return Err(Error::NotListed(address));
            }
            Ok(is_ours)
        }
    }
}

/// Returns the pool that an address is of; the default one if it is of none.
fn pool_name(pools: &Pools, address: IpAddr) -> Arc<str> {
    pools.pool_of(address).cloned().unwrap_or_else(|| DEFAULT_POOL.into())
}

/// Returns a free address of the family: one that is not in quarantine if there is one, else the one that has been for the
/// longest time.
fn pick(
    txn: &TableTxn<'_, Address>,
    pool: &Pool,
    family: Family,
    owner: &str,
    offset: u128,
) -> Option<IpAddr> {
    if let Some(listed) = &pool.listed {
        return pick_listed(txn, listed, family, owner, offset);
    }
    let fresh = pool
        .of(family)
        .find_map(|range| range.next_free(offset, |address| txn.get(Address::by_address(address)).is_some()));
    fresh.or_else(|| {
        let resting = txn.all().filter_map(|row| match row.lease {
            Lease::Resting { since } if pool.of(family).any(|range| range.contains(row.address)) => {
                Some((since, row.address))
            }
            _ => None,
        });
        resting.min().map(|(_, address)| address)
    })
}

/// The same of a listed pool. An address that is reserved for the owner comes first, and has no quarantine: no other owner has
/// had it.
fn pick_listed(
    txn: &TableTxn<'_, Address>,
    listed: &Listed,
    family: Family,
    owner: &str,
    offset: u128,
) -> Option<IpAddr> {
    let row = |address: &IpAddr| txn.get(Address::by_address(*address));
    let is_free = |address: &IpAddr| row(address).is_none_or(|row| !row.allocated());
    if let Some(reserved) = listed.reserved_for(owner, family).find(is_free) {
        return Some(reserved);
    }
    let fresh: Vec<IpAddr> = listed.unreserved(family).filter(|address| row(address).is_none()).collect();
    if !fresh.is_empty() {
        return fresh.get((offset % fresh.len() as u128) as usize).copied();
    }
    let resting = listed.unreserved(family).filter_map(|address| match row(&address)?.lease {
        Lease::Resting { since } => Some((since, address)),
        _ => None,
    });
    resting.min().map(|(_, address)| address)
}

/// The error of a pool without a free address, with the holder of most.
fn exhausted(txn: &TableTxn<'_, Address>, name: Arc<str>, pool: &Pool, family: Family) -> Error {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let of_pool =
        |row: &Address| row.allocated() && Family::of(row.address) == family && pool.gives(row.address);
    for row in txn.all().filter(|row| of_pool(row)) {
        let holder = match row.owner.split_once('/') {
            Some((namespace, _)) => format!("namespace {namespace}"),
            None => row.owner.to_string(),
        };
        *counts.entry(holder).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    let (holder, count) = most.unwrap_or_default();
    Error::Full { pool: name, family, capacity: pool.capacity(family), most: Holder { name: holder, count } }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
