//! Records of the entries that the maps may have of a frontend, with copies of them, and plans of those to be written.

use datapath_abi::LbService;
use ipnetwork::IpNetwork;

use crate::lbmap::rows::{Family, LbMap, MapError};
use crate::model::address::LbAddress;
use crate::model::numbers::{Numbers, add};
use crate::reconciler::balancer::UpsertError;
use crate::reconciler::desired::{Desired, Wildcard};
use crate::reconciler::mirror::Mirror;

/// The known content of a slot's entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Slot {
    /// No entry in this list.
    #[default]
    Missing,
    /// An entry that may exist.
    Unsure,
    /// An entry that exists.
    Row(LbService),
}

impl Slot {
    pub(crate) fn known(self) -> Option<Option<LbService>> {
        match self {
            Slot::Missing => None,
            Slot::Unsure => Some(None),
            Slot::Row(row) => Some(Some(row)),
        }
    }
}

/// The copy of the entry of a slot behind the first, which consists of a backend, the frontend's id and flags.
#[derive(Debug, Clone, Copy, Default)]
struct Copied {
    /// [`MISSING`], [`UNSURE`] or the id of the backend.
    backend_id: u32,
    rev_nat_index: u16,
    flags: u8,
    flags2: u8,
}

const MISSING: u32 = 0;
const UNSURE: u32 = u32::MAX;

impl Copied {
    /// Returns the copy of an entry; `None` for one that this form cannot express.
    fn of(slot: Slot) -> Option<Copied> {
        let row = match slot {
            Slot::Missing => return Some(Copied::default()),
            Slot::Unsure => return Some(Copied { backend_id: UNSURE, ..Copied::default() }),
            Slot::Row(row) => row,
        };
        let LbService { backend_id, rev_nat_index, flags, flags2, count: 0, qcount: 0 } = row else {
            return None;
        };
        (backend_id != MISSING && backend_id != UNSURE).then_some(Copied {
            backend_id,
            rev_nat_index,
            flags,
            flags2,
        })
    }

    fn is_missing(&self) -> bool {
        self.backend_id == MISSING
    }

    fn slot(self) -> Slot {
        match self.backend_id {
            MISSING => Slot::Missing,
            UNSURE => Slot::Unsure,
            backend_id => Slot::Row(LbService {
                backend_id,
                rev_nat_index: self.rev_nat_index,
                flags: self.flags,
                flags2: self.flags2,
                ..LbService::default()
            }),
        }
    }
}

/// The kind of [`Slot`] of a frontend's own entry, apart from it because of its size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Own {
    #[default]
    Missing,
    Unsure,
    Row,
}

/// The record of the map entries that the frontend at an address may have, and the copy of those in the map of
/// services. Most frontends have one backend: with its address a record fills a cache line.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The frontend's id; 0 if only entries are known, but no frontend.
    pub(crate) id: u16,
    /// The highest slot.
    pub(crate) slots: u16,
    /// Whether it was left by the previous run and not upserted yet.
    pub(crate) restored: bool,
    /// The entry for all ports of its address that it desires.
    pub(crate) wildcard: Option<Wildcard>,
    /// The copies of the entries of slots 0 and 1; `more` has those of the others.
    own: LbService,
    own_is: Own,
    first: Copied,
    /// The only backend, or 0; `more` has them if there are several.
    backend: u32,
    /// Boxed because few of the many frontends have any of it.
    more: Option<Box<More>>,
}

/// Backends and entries that few frontends have.
#[derive(Debug, Default)]
struct More {
    backends: Vec<u32>,
    /// The copies of the entries of slots 2, 3, ..., the last one not missing.
    slots: Vec<Copied>,
    matches: Vec<u32>,
    ranges: Vec<IpNetwork>,
    /// The input of its Maglev table, and the table's digest.
    table: Option<(u64, u64)>,
}

impl Record {
    /// Returns the record of a new frontend.
    pub(crate) fn new(id: u16, slots: u16) -> Record {
        Record { id, slots, ..Record::default() }
    }

    /// Whether it is the record of a frontend.
    pub(crate) fn is_frontend(&self) -> bool {
        self.id != 0
    }

    /// Whether nothing is known of the address.
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_frontend() && self.known_slots() == 0
    }

    /// Returns the backends that slots may refer to: those of the slots that were written last, in their order, then
    /// others.
    pub(crate) fn backends(&self) -> &[u32] {
        match &self.more {
            Some(more) if !more.backends.is_empty() => &more.backends,
            _ if self.backend != 0 => std::slice::from_ref(&self.backend),
            _ => &[],
        }
    }

    pub(crate) fn set_backends(&mut self, backends: &[u32]) {
        if let Some(more) = &mut self.more {
            more.backends.clear();
        }
        self.backend = 0;
        match backends {
            [] => {}
            [only] => self.backend = *only,
            several => {
                let known = &mut self.more().backends;
                known.reserve_exact(several.len());
                known.extend_from_slice(several);
            }
        }
        self.trim();
    }

    /// Adds the backends that it lacks.
    pub(crate) fn add_backends(&mut self, backends: &[u32]) {
        if self.backends().is_empty() {
            return self.set_backends(backends);
        }
        let mut all = Numbers::from_slice(self.backends());
        add(&mut all, backends);
        self.set_backends(&all);
    }

    /// Returns the backends that clients may have affinity to.
    pub(crate) fn matches(&self) -> &[u32] {
        self.more.as_ref().map_or(&[], |more| &more.matches)
    }

    pub(crate) fn set_matches(&mut self, matches: &[u32]) {
        if self.matches() != matches {
            self.more().matches = matches.to_vec();
            self.trim();
        }
    }

    fn add_matches(&mut self, matches: &[u32]) {
        let mut all = Numbers::from_slice(self.matches());
        add(&mut all, matches);
        self.set_matches(&all);
    }

    pub(crate) fn ranges(&self) -> &[IpNetwork] {
        self.more.as_ref().map_or(&[], |more| &more.ranges)
    }

    pub(crate) fn set_ranges(&mut self, ranges: &[IpNetwork]) {
        if self.ranges() != ranges {
            self.more().ranges = ranges.to_vec();
            self.trim();
        }
    }

    pub(crate) fn add_ranges(&mut self, ranges: &[IpNetwork]) {
        let known = &mut self.more().ranges;
        known.extend(ranges);
        known.sort();
        known.dedup();
        self.trim();
    }

    /// Returns the input of its Maglev table, and the table's digest.
    pub(crate) fn table(&self) -> Option<(u64, u64)> {
        self.more.as_ref().and_then(|more| more.table)
    }

    pub(crate) fn set_table(&mut self, table: Option<(u64, u64)>) {
        if self.table() != table {
            self.more().table = table;
            self.trim();
        }
    }

    fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    /// Frees what is not needed.
    fn trim(&mut self) {
        let Some(more) = &mut self.more else { return };
        let More { backends, slots, matches, ranges, table } = &**more;
        if backends.is_empty()
            && slots.is_empty()
            && matches.is_empty()
            && ranges.is_empty()
            && table.is_none()
        {
            self.more = None;
        } else if more.backends.capacity() > 4 * more.backends.len() {
            more.backends.shrink_to_fit();
        }
    }

    /// Ends the record of the frontend; the copies of entries stay.
    pub(crate) fn forget_frontend(&mut self) {
        (self.id, self.slots, self.restored, self.wildcard, self.backend) = (0, 0, false, None, 0);
        if let Some(more) = &mut self.more {
            **more = More { slots: std::mem::take(&mut more.slots), ..More::default() };
            self.trim();
        }
    }

    /// Returns the copy of a slot's entry. A missing one may still exist: a redundant write is skipped later.
    pub(crate) fn slot(&self, slot: usize) -> Slot {
        match slot {
            0 => match self.own_is {
                Own::Missing => Slot::Missing,
                Own::Unsure => Slot::Unsure,
                Own::Row => Slot::Row(self.own),
            },
            1 => self.first.slot(),
            slot => {
                let copied = self.more.as_ref().and_then(|more| more.slots.get(slot - 2));
                copied.map_or(Slot::Missing, |copied| copied.slot())
            }
        }
    }

    /// Returns the number of slots up to the last that is not missing.
    pub(crate) fn known_slots(&self) -> usize {
        match &self.more {
            Some(more) if !more.slots.is_empty() => 2 + more.slots.len(),
            _ if !self.first.is_missing() => 2,
            _ => usize::from(self.own_is != Own::Missing),
        }
    }

    /// Sets the copy of a slot's entry; returns whether it can be stored here, and the copy before.
    pub(crate) fn set_slot(&mut self, slot: usize, value: Slot) -> (bool, Slot) {
        if slot == 0 {
            let before = self.slot(0);
            (self.own_is, self.own) = match value {
                Slot::Missing => (Own::Missing, LbService::default()),
                Slot::Unsure => (Own::Unsure, LbService::default()),
                Slot::Row(row) => (Own::Row, row),
            };
            return (true, before);
        }
        let copied = Copied::of(value);
        let (fits, copied) = (copied.is_some(), copied.unwrap_or_default());
        if slot == 1 {
            return (fits, std::mem::replace(&mut self.first, copied).slot());
        }
        let (at, known) = (slot - 2, self.known_slots());
        if copied.is_missing() && slot >= known {
            return (fits, Slot::Missing);
        }
        let slots = &mut self.more().slots;
        if at >= slots.len() {
            slots.resize(at + 1, Copied::default());
        }
        let before = std::mem::replace(&mut slots[at], copied).slot();
        if copied.is_missing() {
            let used = slots.iter().rposition(|slot| !slot.is_missing()).map_or(0, |last| last + 1);
            slots.truncate(used);
            if slots.capacity() > 4 * used {
                slots.shrink_to_fit();
            }
            self.trim();
        }
        (fits, before)
    }

    /// Records all entries that are about to be written; true if the maps may then have more than the desired entries.
    pub(crate) fn expect(&mut self, plan: &Plan<'_>) -> bool {
        let Plan { desired, backends, .. } = plan;
        let count = desired.slots.len() as u16;
        let (matches, ranges) = (plan.matches(), &desired.ranges);
        self.slots = self.slots.max(count);
        if self.backends() != &backends[..] {
            self.add_backends(backends);
        }
        if self.matches() != matches {
            self.add_matches(matches);
        }
        if self.ranges() != ranges {
            self.add_ranges(ranges);
        }
        self.slots != count
            || self.backends() != &backends[..]
            || self.matches() != matches
            || self.ranges() != ranges
    }

    /// Records that the maps have the desired entries and no others.
    pub(crate) fn done(&mut self, plan: &Plan<'_>) {
        self.slots = plan.desired.slots.len() as u16;
        self.set_backends(&plan.backends);
        self.set_matches(plan.matches());
        self.set_ranges(&plan.desired.ranges);
        if plan.desired.table.is_none() {
            self.set_table(None);
        }
    }
}

const _: () = assert!(size_of::<(LbAddress, Record)>() == 64);

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
    /// Returns the entries of slots 1, 2, ....
    pub(crate) fn slots(&self) -> impl Iterator<Item = LbService> {
        let with_slot = self.backends.iter().take(self.desired.slots.len());
        with_slot.map(|backend| self.desired.slot(self.id, *backend))
    }

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
