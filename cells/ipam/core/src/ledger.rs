//! Allocation and release of addresses: transactions on the table `ipam`, without clock or randomness of their own.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;
use statedb::{RwTable, TableTxn};

use crate::address::{Address, Lease};
use crate::error::Error;
use crate::range::{Family, PodRange};

/// How long a released address stays in quarantine, unless the range has no other.
pub(crate) const QUARANTINE: Duration = Duration::from_secs(30);
/// How long an address that was allocated with `expiration: true` waits for its endpoint.
pub(crate) const EXPIRATION: Duration = Duration::from_secs(600);

/// The node's pod ranges; a family without a range is disabled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ranges(pub Vec<PodRange>);

impl Ranges {
    /// Returns the ranges of the given CIDRs.
    pub fn new(cidrs: impl IntoIterator<Item = IpNetwork>) -> Ranges {
        Ranges(cidrs.into_iter().map(PodRange::new).collect())
    }

    /// Returns the ranges of one family.
    pub fn of(&self, family: Family) -> impl Iterator<Item = &PodRange> {
        self.0.iter().filter(move |range| range.family() == family)
    }

    /// Whether the family is enabled.
    pub fn enabled(&self, family: Family) -> bool {
        self.of(family).next().is_some()
    }

    fn check(&self, address: IpAddr) -> Result<(), Error> {
        let family = Family::of(address);
        let first = self.of(family).next().ok_or(Error::Disabled(family))?;
        match self.of(family).any(|range| range.contains(address)) {
            true => Ok(()),
            false => Err(Error::NotInRange(first.cidr())),
        }
    }
}

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

    /// Allocates an address of each enabled family, all or none.
    pub(crate) fn allocate(
        &self,
        ranges: &Ranges,
        families: &[Family],
        owner: &str,
        expiration: Option<Duration>,
        now: Instant,
        randomness: &mut impl Randomness,
    ) -> Result<Vec<Address>, Error> {
        let owner: Arc<str> = owner.into();
        let mut txn = self.table.write();
        let mut given = Vec::new();
        for &family in families {
            if !ranges.enabled(family) {
                continue;
            }
            // An error drops the transaction and so also releases an address of the other family.
            let address = pick(&txn, ranges, family, randomness.offset()).ok_or(Error::Full)?;
            let lease = match expiration {
                Some(after) => Lease::Expiring { uuid: randomness.uuid().into(), at: now + after },
                None => Lease::Held,
            };
            let row = Address { address, owner: owner.clone(), lease };
            txn.insert(row.clone());
            given.push(row);
        }
        txn.commit();
        Ok(given)
    }

    /// Allocates a given address, if it is free.
    pub(crate) fn take(
        &self,
        ranges: &Ranges,
        address: IpAddr,
        owner: &str,
        lease: Lease,
    ) -> Result<(), Error> {
        ranges.check(address)?;
        let mut txn = self.table.write();
        if txn.get(Address::by_address(address)).is_some_and(|row| row.allocated()) {
            return Err(Error::Allocated);
        }
        txn.insert(Address { address, owner: owner.into(), lease });
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

    /// Assigns an address to an endpoint: it no longer expires and is released with the endpoint. A token must be that
    /// of the allocation. A free address of the ranges is allocated to the endpoint; one outside of them is ignored.
    pub(crate) fn hand_over(
        &self,
        ranges: &Ranges,
        address: IpAddr,
        uuid: Option<&str>,
        owner: &str,
        endpoint: u16,
    ) -> Result<(), Error> {
        let mut txn = self.table.write();
        let row = txn.get(Address::by_address(address));
        match (row.map(|row| &row.lease), uuid) {
            (Some(Lease::Expiring { uuid: given, .. }), Some(uuid)) if **given != *uuid => {
                return Err(Error::UuidMismatch);
            }
            // Also without a token: an address that an endpoint uses must not expire.
            (Some(Lease::Expiring { .. }), _) => {}
            (_, Some(_)) => return Err(Error::NoTimer),
            (Some(Lease::Endpoint(other)), None) if *other != endpoint => return Err(Error::Allocated),
            (Some(Lease::Held | Lease::Endpoint(_)), None) => {}
            (Some(Lease::Resting { .. }) | None, None) => {
                if ranges.check(address).is_err() {
                    return Ok(());
                }
            }
        }
        // Keep the owner of the allocation: a restored endpoint may have another owner name.
        let owner = row.filter(|row| row.allocated()).map_or_else(|| owner.into(), |row| row.owner.clone());
        txn.insert(Address { address, owner, lease: Lease::Endpoint(endpoint) });
        txn.commit();
        Ok(())
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

/// Returns a free address of the family: preferably one that is not in quarantine, else the one that has been there
/// longest.
fn pick(txn: &TableTxn<'_, Address>, ranges: &Ranges, family: Family, offset: u128) -> Option<IpAddr> {
    let fresh = ranges
        .of(family)
        .find_map(|range| range.next_free(offset, |address| txn.get(Address::by_address(address)).is_some()));
    fresh.or_else(|| {
        let resting = txn.all().filter_map(|row| match row.lease {
            Lease::Resting { since } if ranges.of(family).any(|range| range.contains(row.address)) => {
                Some((since, row.address))
            }
            _ => None,
        });
        resting.min().map(|(_, address)| address)
    })
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
