//! Giving and taking addresses: transactions on the table `ipam`, without clock or randomness of their own.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;
use statedb::{RwTable, TableTxn};

use crate::address::{Address, Lease};
use crate::error::Error;
use crate::range::{Family, PodRange};

/// How long an address rests after its release, if the range has others.
pub(crate) const REST: Duration = Duration::from_secs(30);
/// How long an address given with `expiration: true` waits for its endpoint.
pub(crate) const EXPIRATION: Duration = Duration::from_secs(600);

/// The node's pod ranges; a family without a range is off.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ranges(pub Vec<PodRange>);

impl Ranges {
    /// The ranges of the given CIDRs.
    pub fn new(cidrs: impl IntoIterator<Item = IpNetwork>) -> Ranges {
        Ranges(cidrs.into_iter().map(PodRange::new).collect())
    }

    /// Those of one family.
    pub fn of(&self, family: Family) -> impl Iterator<Item = &PodRange> {
        self.0.iter().filter(move |range| range.family() == family)
    }

    /// Whether addresses of the family are given.
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

/// A random number and an unguessable token for each new address; given from outside, so that tests choose them.
pub(crate) trait Chance {
    /// Where in a range to begin looking.
    fn offset(&mut self) -> u128;
    /// A token nobody has had.
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

    /// One address of each of the families that are on, all or none.
    pub(crate) fn allocate(
        &self,
        ranges: &Ranges,
        families: &[Family],
        owner: &str,
        expiration: Option<Duration>,
        now: Instant,
        chance: &mut impl Chance,
    ) -> Result<Vec<Address>, Error> {
        let owner: Arc<str> = owner.into();
        let mut txn = self.table.write();
        let mut given = Vec::new();
        for &family in families {
            if !ranges.enabled(family) {
                continue;
            }
            let address = pick(&txn, ranges, family, chance.offset()).ok_or(Error::Full)?;
            let lease = match expiration {
                Some(after) => Lease::Expiring { uuid: chance.uuid().into(), at: now + after },
                None => Lease::Held,
            };
            let row = Address { address, owner: owner.clone(), lease };
            txn.insert(row.clone());
            given.push(row);
        }
        txn.commit();
        Ok(given)
    }

    /// The address asked for, if nothing has it.
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

    /// Gives an address back; one that nobody has is fine. An endpoint's address only goes with `by_endpoint`.
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
            // The address has gone to another endpoint since.
            (Lease::Endpoint(holder), Some(id)) if *holder != id => return Ok(false),
            _ => {}
        }
        let row = Address { lease: Lease::Resting { since: now }, ..(**row).clone() };
        txn.insert(row);
        txn.commit();
        Ok(true)
    }

    /// Makes an address an endpoint's: it no longer expires and goes with the endpoint. A token must be the one given
    /// with the address. An address of our ranges that nobody has becomes the endpoint's; one outside is not ours.
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
        let owner = row.filter(|row| row.allocated()).map_or_else(|| owner.into(), |row| row.owner.clone());
        txn.insert(Address { address, owner, lease: Lease::Endpoint(endpoint) });
        txn.commit();
        Ok(())
    }

    /// Takes back what has expired and ends rests that are over. Returns the expired and when to look again.
    pub(crate) fn sweep(&self, now: Instant) -> (Vec<Address>, Option<Instant>) {
        let mut txn = self.table.write();
        let mut next: Option<Instant> = None;
        let mut expired = Vec::new();
        let mut rested = Vec::new();
        for row in txn.all() {
            let due = match row.lease {
                Lease::Expiring { at, .. } => at,
                Lease::Resting { since } => since + REST,
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
            next = Some(next.map_or(now + REST, |next| next.min(now + REST)));
        }
        for &address in &rested {
            txn.delete(Address::by_address(address));
        }
        if !expired.is_empty() || !rested.is_empty() {
            txn.commit();
        }
        (expired, next)
    }
}

/// A free address of the family: one that has not been used lately if there is one, else the one that rests longest.
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
