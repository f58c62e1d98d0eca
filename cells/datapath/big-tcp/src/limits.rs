//! The sizes: a pure function of the kernel's links, and the handle.

use devices::rtnetlink::{LinkSegments, SegmentSizes};
use parking_lot::Mutex;

/// The largest segment without BIG TCP (`GSO_LEGACY_MAX_SIZE` and `GRO_LEGACY_MAX_SIZE` of the kernel).
pub(crate) const LEGACY: u32 = 65_536;
/// The size that Cilium aims at: three times the former one.
pub(crate) const TARGET: u32 = 196_608;

const LEGACY_SIZES: SegmentSizes = SegmentSizes { gso: LEGACY, gro: LEGACY };

/// The families with larger segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Families {
    pub(crate) ipv4: bool,
    pub(crate) ipv6: bool,
}

impl Families {
    pub(crate) fn is_any(self) -> bool {
        self.ipv4 || self.ipv6
    }
}

/// The sizes in force, by family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Whether IPv4 has larger segments.
    pub is_ipv4_enabled: bool,
    /// Whether IPv6 has larger segments.
    pub is_ipv6_enabled: bool,
    /// Sizes of IPv4.
    pub ipv4: SegmentSizes,
    /// Sizes of IPv6.
    pub ipv6: SegmentSizes,
}

/// Without BIG TCP.
impl Default for Limits {
    fn default() -> Self {
        Self::OFF
    }
}

impl Limits {
    /// Returns the sizes without BIG TCP.
    pub(crate) const OFF: Limits =
        Limits { is_ipv4_enabled: false, is_ipv6_enabled: false, ipv4: LEGACY_SIZES, ipv6: LEGACY_SIZES };

    /// Returns the sizes that the drivers of these devices can.
    pub(crate) fn new<'l>(families: Families, selected: impl Iterator<Item = &'l LinkSegments>) -> Limits {
        let smallest = selected.filter_map(|link| link.tso_max).min();
        let sizes = SegmentSizes { gso: smallest.map_or(TARGET, |max| max.min(TARGET)), gro: TARGET };
        let of = |is_on| if is_on { sizes } else { LEGACY_SIZES };
        Limits {
            is_ipv4_enabled: families.ipv4,
            is_ipv6_enabled: families.ipv6,
            ipv4: of(families.ipv4),
            ipv6: of(families.ipv6),
        }
    }

    /// Returns the sizes that a link should have instead of its own, IPv6 first; `None` if it has them. Sizes of a family
    /// that is off are lowered only.
    pub(crate) fn change(&self, link: &LinkSegments) -> Option<(Option<SegmentSizes>, Option<SegmentSizes>)> {
        let desired = |is_on: bool, sizes: SegmentSizes, found: SegmentSizes| match is_on {
            true => sizes,
            false => SegmentSizes { gso: found.gso.min(sizes.gso), gro: found.gro.min(sizes.gro) },
        };
        let ipv6 = link.ipv6.map(|found| desired(self.is_ipv6_enabled, self.ipv6, found));
        let ipv4 = link.ipv4.map(|found| desired(self.is_ipv4_enabled, self.ipv4, found));
        ((ipv6, ipv4) != (link.ipv6, link.ipv4)).then_some((ipv6, ipv4))
    }
}

/// The maximum sizes of segments for interfaces of pods.
#[derive(Debug)]
pub struct BigTcp(Mutex<Limits>);

impl Default for BigTcp {
    fn default() -> Self {
        Self(Mutex::new(Limits::OFF))
    }
}

impl BigTcp {
    /// Returns the sizes in force.
    #[must_use]
    pub fn limits(&self) -> Limits {
        *self.0.lock()
    }

    pub(crate) fn set(&self, limits: Limits) {
        *self.0.lock() = limits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(tso_max: u32, ipv6: u32, ipv4: u32) -> LinkSegments {
        let sizes = |size| Some(SegmentSizes { gso: size, gro: size });
        let (tso_max, name) = (Some(tso_max), "eth0".to_owned());
        LinkSegments { index: 2, name, tso_max, ipv6: sizes(ipv6), ipv4: sizes(ipv4) }
    }

    #[test]
    fn the_smallest_driver_decides_and_families_that_are_off_are_lowered_only() {
        let both = Families { ipv4: true, ipv6: true };
        let links = [link(524_280, LEGACY, LEGACY), link(131_072, LEGACY, LEGACY)];
        let limits = Limits::new(both, links.iter());
        let larger = Some(SegmentSizes { gso: 131_072, gro: TARGET });
        assert_eq!(limits.change(&links[0]), Some((larger, larger)));
        assert_eq!(Limits::new(both, std::iter::empty()).ipv4.gso, TARGET);
        let done = LinkSegments { ipv6: larger, ipv4: larger, ..links[0].clone() };
        assert_eq!(limits.change(&done), None);

        let lowered = |size| Some(SegmentSizes { gso: size, gro: size });
        let only_v6 = Limits::new(Families { ipv6: true, ipv4: false }, links[..1].iter());
        let target = lowered(TARGET);
        assert_eq!(only_v6.change(&link(524_280, 30_000, 30_000)), Some((target, lowered(30_000))));
        assert_eq!(
            Limits::OFF.change(&link(524_280, TARGET, 30_000)),
            Some((lowered(LEGACY), lowered(30_000)))
        );
        assert_eq!(Limits::OFF.change(&link(524_280, 1_000, LEGACY)), None);
        let old_kernel = LinkSegments { ipv4: None, ..link(524_280, LEGACY, 0) };
        assert_eq!(limits.change(&old_kernel), Some((larger, None)));
    }
}
