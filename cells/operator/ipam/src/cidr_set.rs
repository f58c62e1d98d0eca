//! CIDRs of one size within a larger one: which are taken.

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};

use crate::Error;

/// The most bits between the pool's CIDR and a node's: a bit of memory for each CIDR.
const MAX_BITS: u8 = 24;

/// The most bits of IPv6, as Cilium's operator has it.
const MAX_BITS_V6: u8 = 16;

/// CIDRs of one size within a larger one.
#[derive(Clone, Debug)]
pub(crate) struct CidrSet {
    range: IpNetwork,
    mask: u8,
    /// A bit for each CIDR.
    taken: Vec<u64>,
    used: u64,
    /// Where the search for a free one begins: behind the last one that was allocated.
    next: u64,
}

impl CidrSet {
    /// The CIDRs with this prefix length within a range. `option` names where both are from, for errors.
    pub(crate) fn new(range: IpNetwork, mask: u8, option: &str) -> Result<CidrSet, Error> {
        let range = canonical(range);
        CidrSet::check(range, mask, option)?;
        let count = 1_usize << (mask - range.prefix());
        Ok(CidrSet { range, mask, taken: vec![0; count.div_ceil(64)], used: 0, next: 0 })
    }

    /// Checks that a range can be divided into CIDRs with this prefix length.
    pub(crate) fn check(range: IpNetwork, mask: u8, option: &str) -> Result<(), Error> {
        let (bits, limit) = if range.is_ipv4() { (32, MAX_BITS) } else { (128, MAX_BITS_V6) };
        let most = bits.min(range.prefix() + limit);
        match (range.prefix()..=most).contains(&mask) {
            true => Ok(()),
            false => {
                let (option, least) = (option.to_owned(), range.prefix());
                Err(Error::MaskSize { option, mask, cidr: range, least, most })
            }
        }
    }

    pub(crate) fn range(&self) -> IpNetwork {
        self.range
    }

    /// How many CIDRs there are, and how many of them are taken.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.count(), self.used)
    }

    fn count(&self) -> u64 {
        1 << (self.mask - self.range.prefix())
    }

    /// Takes the next free CIDR.
    pub(crate) fn allocate(&mut self) -> Option<IpNetwork> {
        let count = self.count();
        if self.used == count {
            return None;
        }
        let free = |at: &u64| !self.is_set(*at);
        let at = (self.next..count).chain(0..self.next).find(free)?;
        self.set(at, true);
        self.next = (at + 1) % count;
        Some(self.at(at))
    }

    /// Whether a CIDR lies within the range.
    pub(crate) fn contains(&self, cidr: IpNetwork) -> bool {
        let inner = canonical(cidr);
        self.range.is_ipv4() == inner.is_ipv4()
            && inner.prefix() >= self.range.prefix()
            && self.range.contains(inner.network())
    }

    /// Whether nothing of a CIDR within the range is taken.
    pub(crate) fn is_free(&self, cidr: IpNetwork) -> bool {
        self.places(cidr).all(|at| !self.is_set(at))
    }

    /// Takes a CIDR within the range, whatever its size.
    pub(crate) fn occupy(&mut self, cidr: IpNetwork) {
        self.places(cidr).for_each(|at| self.set(at, true));
    }

    /// Frees a CIDR within the range.
    pub(crate) fn release(&mut self, cidr: IpNetwork) {
        self.places(cidr).for_each(|at| self.set(at, false));
    }

    /// The places of a CIDR: several if it is larger than those of the set, one if it is smaller.
    fn places(&self, cidr: IpNetwork) -> std::ops::Range<u64> {
        let first = (number(canonical(cidr)) - number(self.range)) >> self.shift();
        // Within the range, so the bits that count are few.
        let first = u64::try_from(first).unwrap_or(u64::MAX);
        let more = self.mask.saturating_sub(cidr.prefix());
        first..first.saturating_add(1 << more).min(self.count())
    }

    fn shift(&self) -> u32 {
        u32::from(if self.range.is_ipv4() { 32 - self.mask } else { 128 - self.mask })
    }

    fn at(&self, place: u64) -> IpNetwork {
        // A shift by all bits is the range itself.
        let offset = u128::from(place).checked_shl(self.shift()).unwrap_or_default();
        let address = number(self.range) + offset;
        let network = match self.range {
            IpNetwork::V4(_) => {
                let address = u32::try_from(address).unwrap_or(u32::MAX);
                Ipv4Network::new(address.into(), self.mask).map(IpNetwork::V4)
            }
            IpNetwork::V6(_) => Ipv6Network::new(address.into(), self.mask).map(IpNetwork::V6),
        };
        network.unwrap_or(self.range)
    }

    fn is_set(&self, at: u64) -> bool {
        self.taken[(at / 64) as usize] >> (at % 64) & 1 == 1
    }

    fn set(&mut self, at: u64, taken: bool) {
        if self.is_set(at) != taken {
            self.taken[(at / 64) as usize] ^= 1 << (at % 64);
            self.used = if taken { self.used + 1 } else { self.used - 1 };
        }
    }
}

/// The network with its host bits cleared.
pub(crate) fn canonical(cidr: IpNetwork) -> IpNetwork {
    IpNetwork::new(cidr.network(), cidr.prefix()).unwrap_or(cidr)
}

fn number(cidr: IpNetwork) -> u128 {
    match cidr {
        IpNetwork::V4(cidr) => u128::from(u32::from(cidr.network())),
        IpNetwork::V6(cidr) => u128::from(cidr.network()),
    }
}

/// Whether two CIDRs have an address in common.
pub(crate) fn overlap(a: IpNetwork, b: IpNetwork) -> bool {
    a.is_ipv4() == b.is_ipv4() && (a.contains(b.network()) || b.contains(a.network()))
}

/// The sets of a family in the order of the option: the first one that is not used up gives the next CIDR.
#[derive(Clone, Debug, Default)]
pub(crate) struct CidrSets(Vec<CidrSet>);

impl CidrSets {
    /// Returns the sets of these ranges, which must not overlap.
    pub(crate) fn new(ranges: &[IpNetwork], mask: u8, option: &str) -> Result<CidrSets, Error> {
        for (at, &first) in ranges.iter().enumerate() {
            if let Some(&second) = ranges[at + 1..].iter().find(|&&second| overlap(first, second)) {
                return Err(Error::Overlap { option: option.to_owned(), first, second });
            }
        }
        let sets = ranges.iter().map(|&range| CidrSet::new(range, mask, option));
        Ok(CidrSets(sets.collect::<Result<_, _>>()?))
    }

    pub(crate) fn allocate(&mut self) -> Option<IpNetwork> {
        self.0.iter_mut().find_map(CidrSet::allocate)
    }

    /// The set that a CIDR lies in.
    pub(crate) fn of(&mut self, cidr: IpNetwork) -> Option<&mut CidrSet> {
        self.0.iter_mut().find(|set| set.contains(cidr))
    }

    /// How many CIDRs there are, and how many of them are taken.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.0.iter().map(CidrSet::counts).fold((0, 0), |(all, used), (a, u)| (all + a, used + u))
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = IpNetwork> {
        self.0.iter().map(CidrSet::range)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn cidr(text: &str) -> IpNetwork {
        text.parse().unwrap()
    }

    fn set(range: &str, mask: u8) -> CidrSet {
        CidrSet::new(cidr(range), mask, "option").unwrap()
    }

    #[test]
    fn freed_cidrs_come_back_late() {
        let mut pool = set("10.0.0.0/22", 24);
        let taken: Vec<String> = (0..4).map(|_| pool.allocate().unwrap().to_string()).collect();
        assert_eq!(taken, ["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"]);
        assert_eq!(pool.allocate(), None);
        pool.release(cidr("10.0.3.0/24"));
        pool.release(cidr("10.0.1.0/24"));
        assert_eq!(pool.allocate(), Some(cidr("10.0.1.0/24")));
        pool.release(cidr("10.0.0.0/24"));
        assert_eq!(pool.allocate(), Some(cidr("10.0.3.0/24")));
        assert_eq!(pool.allocate(), Some(cidr("10.0.0.0/24")));
        assert_eq!(pool.counts(), (4, 4));
    }

    #[test]
    fn sizes_at_the_ends_work() {
        assert_eq!(set("10.0.0.0/24", 24).allocate(), Some(cidr("10.0.0.0/24")));
        assert_eq!(set("10.0.0.7/32", 32).allocate(), Some(cidr("10.0.0.7/32")));
        assert_eq!(set("0.0.0.0/0", 24).allocate(), Some(cidr("0.0.0.0/24")));
        assert_eq!(set("fd00::/104", 120).allocate(), Some(cidr("fd00::/120")));
        assert_eq!(set("fd00::1/128", 128).allocate(), Some(cidr("fd00::1/128")));
        assert_eq!(set("::/0", 16).allocate(), Some(cidr("::/16")));
        let mut last = set("255.255.254.0/23", 24);
        last.allocate();
        assert_eq!(last.allocate(), Some(cidr("255.255.255.0/24")));
        for (range, mask) in
            [("10.0.0.0/24", 23), ("10.0.0.0/24", 33), ("fd00::/104", 121), ("fd00::/104", 64)]
        {
            let error = CidrSet::new(cidr(range), mask, "cluster-pool-mask-size").unwrap_err().to_string();
            assert!(error.starts_with("cluster-pool-mask-size: mask size"), "{error}");
        }
    }

    #[test]
    fn overlapping_ranges_are_refused() {
        let ranges = ["10.0.0.0/16", "10.1.0.0/16", "10.0.128.0/17"].map(cidr);
        let error = CidrSets::new(&ranges, 24, "cluster-pool-ipv4-cidr").unwrap_err().to_string();
        assert!(error.contains("10.0.0.0/16 and 10.0.128.0/17 overlap"), "{error}");
        assert!(CidrSets::new(&ranges[..2], 24, "x").is_ok());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Allocate,
        Occupy(IpNetwork),
        Release(IpNetwork),
    }

    fn step() -> impl Strategy<Value = Step> {
        let any = || {
            (0..8u32, 26..30u8).prop_map(|(at, mask)| {
                let address = 0x0a00_0000_u32 + (at << 5);
                canonical(IpNetwork::V4(Ipv4Network::new(address.into(), mask).unwrap()))
            })
        };
        prop_oneof![2 => Just(Step::Allocate), 1 => any().prop_map(Step::Occupy), 1 => any().prop_map(Step::Release)]
    }

    proptest! {
        /// Equal to a set of addresses.
        #[test]
        fn equal_to_a_set_of_addresses(steps in prop::collection::vec(step(), 1..60)) {
            let mut pool = set("10.0.0.0/24", 28);
            let mut model: BTreeSet<u32> = BTreeSet::new();
            // A CIDR that is smaller than those of the set takes a whole one.
            let addresses = |cidr: IpNetwork| -> BTreeSet<u32> {
                let whole = IpNetwork::new(cidr.ip(), cidr.prefix().min(28)).unwrap();
                let IpNetwork::V4(whole) = whole else { panic!() };
                (u32::from(whole.network())..=u32::from(whole.broadcast())).collect()
            };
            for step in steps {
                match step {
                    Step::Allocate => match pool.allocate() {
                        Some(cidr) => {
                            prop_assert_eq!(cidr.prefix(), 28);
                            let new = addresses(cidr);
                            prop_assert!(model.is_disjoint(&new), "{} was taken", cidr);
                            model.extend(new);
                        }
                        None => prop_assert_eq!(model.len(), 256),
                    },
                    Step::Occupy(cidr) => {
                        prop_assert_eq!(pool.is_free(cidr), model.is_disjoint(&addresses(cidr)));
                        pool.occupy(cidr);
                        model.extend(addresses(cidr));
                    }
                    Step::Release(cidr) => {
                        pool.release(cidr);
                        let gone = addresses(cidr);
                        model.retain(|address| !gone.contains(address));
                    }
                }
                prop_assert_eq!(pool.counts().1 * 16, model.len() as u64);
            }
        }
    }
}
