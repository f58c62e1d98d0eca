//! Entries for all ports of an address, desired by the frontends at that address.

use std::net::IpAddr;

use smallvec::SmallVec;

use crate::lbmap::rows::{Key, Value};
use crate::model::address::{LbAddress, Protocol, Scope};
use crate::model::fast_map::FastMap;
use crate::reconciler::desired::{Desired, Flags, wildcard_row};

/// A frontend of an address.
type At = (u16, Protocol, Scope);

/// The frontends that desire the entry for all ports of an address, sorted.
#[derive(Debug, Default)]
pub(crate) struct Wildcards(FastMap<IpAddr, SmallVec<[(At, Flags); 2]>>);

impl Wildcards {
    /// Records whether a frontend desires the entry.
    pub(crate) fn set(&mut self, desired: &Desired) {
        let Some(flags) = desired.wildcard else { return self.remove(&desired.address) };
        let wishes = self.0.entry(desired.address.ip).or_default();
        let at = at(&desired.address);
        match wishes.binary_search_by_key(&at, |(at, _)| *at) {
            Ok(known) => wishes[known].1 = flags,
            Err(place) => wishes.insert(place, (at, flags)),
        }
    }

    /// Removes a frontend.
    pub(crate) fn remove(&mut self, address: &LbAddress) {
        let Some(wishes) = self.0.get_mut(&address.ip) else { return };
        if let Ok(known) = wishes.binary_search_by_key(&at(address), |(at, _)| *at) {
            wishes.remove(known);
        }
        if wishes.is_empty() {
            self.0.remove(&address.ip);
        }
    }

    /// Returns the entry, if a frontend desires it: with the types of all that do.
    pub(crate) fn row(&self, ip: IpAddr) -> Option<(Key, Value)> {
        let wishes = self.0.get(&ip)?;
        let flags = wishes.iter().fold(Flags::default(), |all, (_, one)| Flags(all.0 | one.0, all.1 | one.1));
        Some(wildcard_row(ip, flags))
    }

    /// Returns the frontends that desire the entry of an address.
    pub(crate) fn of(&self, ip: IpAddr) -> impl Iterator<Item = LbAddress> {
        let wishes = self.0.get(&ip).into_iter().flatten();
        wishes.map(move |((port, protocol, scope), _)| LbAddress {
            ip,
            port: *port,
            protocol: *protocol,
            scope: *scope,
        })
    }

    /// Returns the number of addresses with such an entry.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

fn at(address: &LbAddress) -> At {
    (address.port, address.protocol, address.scope)
}
