//! The usable addresses of one pod range, as arithmetic.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

/// An IP family, by its name in the REST API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// `ipv4`
    V4,
    /// `ipv6`
    V6,
}

impl Family {
    /// Returns the family of an address.
    pub fn of(address: IpAddr) -> Family {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// Returns `ipv4` or `ipv6`, as in `?family=` and in metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "ipv4",
            Family::V6 => "ipv6",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

/// The addresses of a CIDR that may be allocated: all but the first
/// (network) and the last (broadcast); of a /31, /32, /127 or /128 all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodRange {
    cidr: IpNetwork,
    first: u128,
    capacity: u128,
}

impl PodRange {
    /// Returns the range of `cidr`; host bits are ignored.
    pub fn new(cidr: IpNetwork) -> PodRange {
        let bits = match cidr {
            IpNetwork::V4(_) => 32,
            IpNetwork::V6(_) => 128,
        };
        let host_bits = u32::from(bits - cidr.prefix());
        let base = number(cidr.network());
        // 2^128 does not fit into the type; one address less is acceptable.
        let size = 1u128.checked_shl(host_bits).unwrap_or(u128::MAX);
        match size {
            1 | 2 => PodRange { cidr, first: base, capacity: size },
            size => PodRange { cidr, first: base + 1, capacity: size - 2 },
        }
    }

    /// The same with the first or the last address allocated, too.
    pub fn with_ends(cidr: IpNetwork, allow_first: bool, allow_last: bool) -> PodRange {
        let mut range = PodRange::new(cidr);
        if range.first > number(cidr.network()) {
            range.first -= u128::from(allow_first);
            range.capacity += u128::from(allow_first) + u128::from(allow_last);
        }
        range
    }

    /// Returns the CIDR, with host bits cleared.
    pub fn cidr(&self) -> IpNetwork {
        // The prefix came from a valid network.
        IpNetwork::new(self.cidr.network(), self.cidr.prefix()).unwrap_or(self.cidr)
    }

    /// Returns the family of the range.
    pub fn family(&self) -> Family {
        Family::of(self.cidr.ip())
    }

    /// Returns the number of addresses that can be allocated.
    pub fn capacity(&self) -> u128 {
        self.capacity
    }

    /// Whether `address` may be allocated.
    pub fn contains(&self, address: IpAddr) -> bool {
        Family::of(address) == self.family()
            && number(address).checked_sub(self.first).is_some_and(|offset| offset < self.capacity)
    }

    /// Returns the first address at or after `offset` (modulo capacity, wrapping once) that is not `taken`. Cost: one
    /// call of `taken` per taken address passed.
    pub fn next_free(&self, offset: u128, taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        if self.capacity == 0 {
            return None;
        }
        let start = offset % self.capacity;
        let mut at = start;
        loop {
            let candidate = self.nth(at);
            if !taken(candidate) {
                return Some(candidate);
            }
            at = if at + 1 == self.capacity { 0 } else { at + 1 };
            if at == start {
                return None;
            }
        }
    }

    fn nth(&self, offset: u128) -> IpAddr {
        let value = self.first + offset;
        match self.family() {
            Family::V4 => IpAddr::V4(Ipv4Addr::from(u32::try_from(value).unwrap_or(u32::MAX))),
            Family::V6 => IpAddr::V6(Ipv6Addr::from(value)),
        }
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn range(cidr: &str) -> PodRange {
        PodRange::new(cidr.parse().unwrap())
    }

    #[test]
    fn capacities_are_those_of_the_original() {
        for (cidr, capacity) in [
            ("10.244.0.0/16", 65534u128),
            ("10.0.0.0/24", 254),
            ("10.0.0.0/30", 2),
            ("10.0.0.0/31", 2),
            ("fd00::/127", 2),
            ("10.0.0.7/32", 1),
            ("fd00::/64", 18446744073709551614),
            ("fd00::/96", 4294967294),
            ("fd00::1/128", 1),
        ] {
            assert_eq!(range(cidr).capacity(), capacity, "{cidr}");
        }
    }

    #[test]
    fn network_and_broadcast_are_never_given() {
        let range = range("192.0.2.8/29");
        let all: BTreeSet<IpAddr> =
            (0..20).map(|offset| range.next_free(offset, |_| false).unwrap()).collect();
        let expected: BTreeSet<IpAddr> = (9..15).map(|host| IpAddr::from([192, 0, 2, host])).collect();
        assert_eq!(all, expected);
        assert!(!range.contains("192.0.2.8".parse().unwrap()));
        assert!(!range.contains("192.0.2.15".parse().unwrap()));
        assert!(!range.contains("fd00::1".parse().unwrap()));
    }

    #[test]
    fn a_pool_may_allow_the_ends_of_its_ranges() {
        let cidr: IpNetwork = "192.0.2.8/29".parse().unwrap();
        let ends = |first, last| {
            let range = PodRange::with_ends(cidr, first, last);
            let ends = [8, 15].map(|host| range.contains([192, 0, 2, host].into()));
            (range.capacity(), ends)
        };
        assert_eq!(ends(false, false), (6, [false, false]));
        assert_eq!(ends(true, false), (7, [true, false]));
        assert_eq!(ends(false, true), (7, [false, true]));
        assert_eq!(ends(true, true), (8, [true, true]));
        let whole = PodRange::with_ends("192.0.2.8/31".parse().unwrap(), true, true);
        assert_eq!(whole.capacity(), 2);
    }

    #[test]
    fn a_full_range_ends_the_search() {
        assert_eq!(range("192.0.2.0/28").next_free(9, |_| true), None);
        assert_eq!(range("192.0.2.0/31").next_free(1, |_| false), Some([192, 0, 2, 1].into()));
        let one_left: IpAddr = "192.0.2.3".parse().unwrap();
        assert_eq!(range("192.0.2.0/28").next_free(9, |a| a != one_left), Some(one_left));
    }
}
