//! Ranges of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use k8s_types::cilium::IpBlock;

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn of(ip: IpAddr) -> Family {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// Returns the family with Kubernetes' name.
    pub(crate) fn named(name: &str) -> Option<Family> {
        match name {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            _ => None,
        }
    }

    fn address(self, number: u128) -> IpAddr {
        match self {
            // Numbers of ranges of this family fit.
            Family::V4 => Ipv4Addr::from_bits(number as u32).into(),
            Family::V6 => Ipv6Addr::from_bits(number).into(),
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

/// Addresses of one family from a first to a last one, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AddressRange {
    pub(crate) family: Family,
    pub(crate) first: u128,
    pub(crate) last: u128,
}

impl AddressRange {
    fn new(first: IpAddr, last: IpAddr) -> AddressRange {
        AddressRange { family: Family::of(first), first: number(first), last: number(last) }
    }

    /// Returns the range of a block, and the part of it whose addresses may be given. The error says what is wrong.
    pub(crate) fn parse(
        block: &IpBlock,
        excludes_ends: bool,
    ) -> Result<(AddressRange, AddressRange), String> {
        if !block.cidr.is_empty() {
            let wrong = |_| format!("{:?} is no CIDR", block.cidr);
            let network: IpNetwork = block.cidr.parse().map_err(wrong)?;
            let range = AddressRange::new(network.network(), network.broadcast());
            let mut usable = range;
            if excludes_ends && range.last - range.first > 1 {
                (usable.first, usable.last) = (range.first + 1, range.last - 1);
            }
            return Ok((range, usable));
        }
        let address = |text: &str| text.parse::<IpAddr>().map_err(|_| format!("{text:?} is no address"));
        let first = address(&block.start)?;
        let last = if block.stop.is_empty() { first } else { address(&block.stop)? };
        if Family::of(first) != Family::of(last) {
            return Err(format!("{first} and {last} are of different families"));
        }
        if first > last {
            return Err(format!("{first} is above {last}"));
        }
        let range = AddressRange::new(first, last);
        Ok((range, range))
    }

    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        self.family == Family::of(ip) && (self.first..=self.last).contains(&number(ip))
    }

    pub(crate) fn overlaps(&self, other: &AddressRange) -> bool {
        self.family == other.family && self.first <= other.last && other.first <= self.last
    }

    /// Returns the number of its addresses; at most the largest number there is.
    pub(crate) fn len(&self) -> u128 {
        (self.last - self.first).saturating_add(1)
    }

    /// Returns the address with this number.
    pub(crate) fn address(&self, number: u128) -> IpAddr {
        self.family.address(number)
    }

    /// Returns the same addresses as disjoint ranges in order.
    pub(crate) fn merge(mut ranges: Vec<AddressRange>) -> Vec<AddressRange> {
        ranges.sort();
        let mut merged: Vec<AddressRange> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if last.overlaps(&range) => last.last = last.last.max(range.last),
                _ => merged.push(range),
            }
        }
        merged
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} - {}", self.address(self.first), self.address(self.last))
    }
}

/// Returns the address as a number.
pub(crate) fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(cidr: &str, start: &str, stop: &str) -> IpBlock {
        IpBlock { cidr: cidr.into(), start: start.into(), stop: stop.into() }
    }

    #[test]
    fn blocks_are_prefixes_or_have_a_first_and_a_last_address() {
        let usable = |cidr: &str, start: &str, stop: &str, excludes_ends| {
            AddressRange::parse(&block(cidr, start, stop), excludes_ends)
                .map(|(_, usable)| format!("{usable} {}", usable.len()))
        };
        for (cidr, start, stop, excludes_ends, expected) in [
            ("10.0.0.0/24", "", "", false, "10.0.0.0 - 10.0.0.255 256"),
            ("10.0.0.77/24", "", "", true, "10.0.0.1 - 10.0.0.254 254"),
            ("10.0.0.0/31", "", "", true, "10.0.0.0 - 10.0.0.1 2"),
            ("10.0.0.0/32", "", "", true, "10.0.0.0 - 10.0.0.0 1"),
            ("10.0.0.0/30", "", "", true, "10.0.0.1 - 10.0.0.2 2"),
            ("", "10.0.0.5", "", true, "10.0.0.5 - 10.0.0.5 1"),
            ("", "10.0.0.5", "10.0.1.4", true, "10.0.0.5 - 10.0.1.4 256"),
            ("fd00::/112", "", "", false, "fd00:: - fd00::ffff 65536"),
            (
                "::/0",
                "",
                "",
                false,
                ":: - ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 340282366920938463463374607431768211455",
            ),
        ] {
            assert_eq!(usable(cidr, start, stop, excludes_ends), Ok(expected.to_owned()));
        }
        for (cidr, start, stop, error) in [
            ("10.0.0.0/33", "", "", "\"10.0.0.0/33\" is no CIDR"),
            ("", "", "", "\"\" is no address"),
            ("", "10.0.0.9", "10.0.0.8", "10.0.0.9 is above 10.0.0.8"),
            ("", "10.0.0.9", "fd00::1", "10.0.0.9 and fd00::1 are of different families"),
        ] {
            assert_eq!(usable(cidr, start, stop, false), Err(error.to_owned()));
        }
    }

    #[test]
    fn merged_ranges_are_disjoint() {
        let range = |family, first, last| AddressRange { family, first, last };
        let merged = AddressRange::merge(vec![
            range(Family::V4, 8, 9),
            range(Family::V6, 1, 5),
            range(Family::V4, 1, 7),
            range(Family::V4, 3, 4),
            range(Family::V4, 7, 7),
        ]);
        assert_eq!(merged, [range(Family::V4, 1, 7), range(Family::V4, 8, 9), range(Family::V6, 1, 5)]);
    }
}
