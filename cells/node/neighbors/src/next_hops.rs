//! The next hops to addresses, and which of them are in use.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

/// The index of a link, and the address of a neighbour there.
pub(crate) type Hop = (u32, IpAddr);

/// The next hops to an address, one for each link that leads to it.
pub(crate) type Hops = Vec<Hop>;

/// The next hops to all addresses.
#[derive(Debug, Default)]
pub(crate) struct NextHops {
    by_address: HashMap<IpAddr, Hops>,
    /// Numbers of addresses by next hop.
    uses: HashMap<Hop, usize>,
}

impl NextHops {
    /// Replaces the next hops to addresses, none for addresses that are gone. Returns those that may have come or gone: the
    /// cost does not depend on the number of other addresses.
    pub(crate) fn replace(&mut self, changes: impl Iterator<Item = (IpAddr, Option<Hops>)>) -> BTreeSet<Hop> {
        let mut touched = BTreeSet::new();
        for (address, hops) in changes {
            for hop in hops.iter().flatten() {
                *self.uses.entry(*hop).or_default() += 1;
                touched.insert(*hop);
            }
            let old = match hops {
                Some(hops) => self.by_address.insert(address, hops),
                None => self.by_address.remove(&address),
            };
            for hop in old.into_iter().flatten() {
                touched.insert(hop);
                if let Some(uses) = self.uses.get_mut(&hop) {
                    *uses -= 1;
                    if *uses == 0 {
                        self.uses.remove(&hop);
                    }
                }
            }
        }
        touched
    }

    /// Whether the next hops to an address are known.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.by_address.contains_key(&address)
    }

    /// Whether an address is reached by a next hop.
    pub(crate) fn is_used(&self, hop: Hop) -> bool {
        self.uses.contains_key(&hop)
    }

    /// Returns the number of addresses.
    pub(crate) fn len(&self) -> usize {
        self.by_address.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn one_change_touches_its_own_next_hops() {
        let mut hops = NextHops::default();
        let router = (2, ip(254));
        let all = (1..=200).map(|last| (ip(last), Some(vec![router, (3, ip(last))])));
        assert_eq!(hops.replace(all).len(), 201);
        assert_eq!(hops.len(), 200);
        let touched = hops.replace([(ip(7), None)].into_iter());
        assert_eq!(touched, [router, (3, ip(7))].into());
        assert!(hops.is_used(router) && !hops.is_used((3, ip(7))) && !hops.has(ip(7)));
        let touched = hops.replace([(ip(8), Some(vec![router]))].into_iter());
        assert_eq!(touched, [router, (3, ip(8))].into());
        assert!(!hops.is_used((3, ip(8))) && hops.has(ip(8)));
    }

    #[test]
    fn a_next_hop_goes_with_its_last_address() {
        let mut hops = NextHops::default();
        hops.replace([(ip(1), Some(vec![(2, ip(254))])), (ip(2), Some(vec![(2, ip(254))]))].into_iter());
        hops.replace([(ip(1), None)].into_iter());
        assert!(hops.is_used((2, ip(254))));
        hops.replace([(ip(2), None)].into_iter());
        assert!(!hops.is_used((2, ip(254))));
    }
}
