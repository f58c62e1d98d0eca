//! Records of the entries that the maps may have of a frontend, and plans of those to be written.

use ipnetwork::IpNetwork;

use crate::lbmap::rows::{Family, LbMap, MapError};
use crate::model::address::LbAddress;
use crate::model::numbers::{Numbers, add};
use crate::reconciler::balancer::UpsertError;
use crate::reconciler::desired::Desired;
use crate::reconciler::mirror::Mirror;

/// The map entries that a frontend may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: u16,
    /// Whether it was left by the previous run and not upserted yet.
    pub(crate) restored: bool,
    /// The highest slot.
    pub(crate) slots: u16,
    /// Backends that slots may refer to: those of the slots that were written last, in their order, then others.
    pub(crate) backends: Numbers,
    /// Boxed because few of the many frontends have any of it.
    pub(crate) more: Option<Box<More>>,
}

/// Entries that few frontends have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct More {
    pub(crate) matches: Numbers,
    pub(crate) ranges: Vec<IpNetwork>,
    /// The input of its Maglev table, and the table's digest.
    pub(crate) table: Option<(u64, u64)>,
}

impl Record {
    pub(crate) fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    /// Returns the backends that clients may have affinity to.
    pub(crate) fn matches(&self) -> &[u32] {
        self.more.as_ref().map_or(&[], |more| &more.matches)
    }

    pub(crate) fn ranges(&self) -> &[IpNetwork] {
        self.more.as_ref().map_or(&[], |more| &more.ranges)
    }

    /// Records all entries that are about to be written; true if the maps may then have more than the desired entries.
    pub(crate) fn expect(&mut self, plan: &Plan<'_>) -> bool {
        let Plan { desired, backends, .. } = plan;
        let count = desired.slots.len() as u16;
        let (matches, ranges) = (plan.matches(), &desired.ranges);
        self.slots = self.slots.max(count);
        if self.backends != *backends {
            add(&mut self.backends, backends);
        }
        if self.matches() != matches {
            add(&mut self.more().matches, matches);
        }
        if self.ranges() != ranges {
            let more = self.more();
            more.ranges.extend(ranges);
            more.ranges.sort();
            more.ranges.dedup();
        }
        self.slots != count
            || self.backends != *backends
            || self.matches() != matches
            || self.ranges() != ranges
    }

    /// Records that the maps have the desired entries and no others.
    pub(crate) fn done(&mut self, plan: &Plan<'_>) {
        self.slots = plan.desired.slots.len() as u16;
        self.backends = plan.backends.clone();
        let table = self.more.as_ref().and_then(|more| more.table).filter(|_| plan.desired.table.is_some());
        let (matches, ranges) = (plan.matches(), &plan.desired.ranges);
        self.more = None;
        if table.is_some() || !matches.is_empty() || !ranges.is_empty() {
            let (matches, ranges) = (Numbers::from_slice(matches), ranges.clone());
            self.more = Some(Box::new(More { matches, ranges, table }));
        }
    }
}

/// Map entries to upsert for a frontend at one address, with the result.
#[derive(Debug)]
pub(crate) struct Upsert {
    pub(crate) desired: Desired,
    /// The frontend's id, 0 before the entries are written.
    pub(crate) result: Result<u16, UpsertError>,
}

impl From<Desired> for Upsert {
    fn from(desired: Desired) -> Upsert {
        Upsert { desired, result: Ok(0) }
    }
}

/// A frontend's address whose entries are to be deleted, with the result.
#[derive(Debug)]
pub(crate) struct Removal {
    pub(crate) address: LbAddress,
    pub(crate) result: Result<(), MapError>,
}

impl From<LbAddress> for Removal {
    fn from(address: LbAddress) -> Removal {
        Removal { address, result: Ok(()) }
    }
}

/// A frontend with assigned ids, ready to be written.
pub(crate) struct Plan<'d> {
    pub(crate) desired: &'d Desired,
    /// Set when the entries are written, or refused.
    pub(crate) result: &'d mut Result<u16, UpsertError>,
    pub(crate) id: u16,
    /// Ids of the backends with slots, then of those without.
    pub(crate) backends: Numbers,
    /// Those of them whose entries may be stale.
    pub(crate) stale: Numbers,
    /// Whether the maps may have entries that are not desired any more.
    pub(crate) cleans: bool,
}

impl Plan<'_> {
    /// Returns the backends that clients may have affinity to.
    pub(crate) fn matches(&self) -> &[u32] {
        &self.backends[..usize::from(self.desired.matches)]
    }
}

/// The maximum number of entries that a frontend needs in each map.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Need([usize; LbMap::COUNT]);

impl Need {
    /// Adds the entries of a frontend, as if the maps had none of them yet.
    pub(crate) fn add(&mut self, desired: &Desired) {
        let family = Family::of(desired.address.ip);
        let needs = [
            (LbMap::Services(family), desired.slots.len() + 1 + usize::from(desired.wildcard.is_some())),
            (LbMap::Backends(family), desired.slots.len() + desired.without_slot.len()),
            (LbMap::ReverseNat(family), 1),
            (LbMap::AffinityMatch, usize::from(desired.matches)),
            (LbMap::SourceRanges(family), desired.ranges.len()),
            (LbMap::Maglev(family), usize::from(desired.table.is_some())),
        ];
        needs.iter().for_each(|(map, count)| self.0[map.index()] += count);
    }

    /// Whether all maps have the capacity for it.
    pub(crate) fn fits(&self, free: &Need) -> bool {
        self.0.iter().zip(&free.0).all(|(need, free)| need <= free)
    }

    /// Returns the free capacity of the maps.
    pub(crate) fn free(mirror: &Mirror) -> Need {
        let mut free = Need::default();
        for map in LbMap::ALL {
            free.0[map.index()] = mirror.free(map);
        }
        free
    }
}
