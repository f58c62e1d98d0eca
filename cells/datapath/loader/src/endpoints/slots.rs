//! Bookkeeping of the slots of `ep_policies`: ready, in quarantine or unused. Pure, without a kernel.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// How long a slot stays unused after its endpoint was deleted: programs in flight may still read its map.
pub const QUARANTINE: Duration = Duration::from_secs(1);

/// How long slots beyond the reserve must have been free before their maps are destroyed: pods created in recurring
/// waves must not wait for a grace period per map each time.
pub const SHRINK_INTERVAL: Duration = Duration::from_secs(60);

/// Slots by state. Slot 0 is never used: a settings entry that is all zero names it.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Vec<u32>,
    quarantined: VecDeque<(Instant, u32)>,
    /// Slots that were reserved but for which no map could be created.
    spare: Vec<u32>,
    /// The first slot that never had a map.
    fresh: u32,
    limit: u32,
    /// The number of slots taken so far.
    taken: usize,
    reserve: Reserve,
    /// The minimum number of free slots since the last shrink, and the time of that shrink.
    lowest_free: usize,
    shrunk: Option<Instant>,
}

/// The desired number of ready slots.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reserve {
    /// At first, and the batch of refills.
    pub(crate) first: usize,
    /// Once a quarter of the first ones are taken, which means that pods are being created.
    pub(crate) grown: usize,
}

impl Slots {
    /// Creates slots 1 to `limit` - 1, none of which has a map.
    pub(crate) fn new(limit: u32, reserve: Reserve) -> Slots {
        let (free, quarantined, spare) = (Vec::new(), VecDeque::new(), Vec::new());
        Slots { free, quarantined, spare, fresh: 1, limit, taken: 0, reserve, lowest_free: 0, shrunk: None }
    }

    /// Restores slots of a previous run: `occupied` have a map, `used` are endpoints'. Returns the free ones; the
    /// caller must empty their maps.
    pub(crate) fn restore(&mut self, occupied: &BTreeSet<u32>, used: &BTreeSet<u32>) -> Vec<u32> {
        self.fresh = occupied.iter().chain(used).max().map_or(1, |last| last + 1);
        // Lowest last, as slots are taken from the end.
        self.free =
            occupied.iter().rev().copied().filter(|slot| *slot != 0 && !used.contains(slot)).collect();
        self.free.clone()
    }

    /// Takes a slot with an empty map, if one is ready.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.taken += 1;
        let slot = self.free.pop();
        self.lowest_free = self.lowest_free.min(self.free.len());
        slot
    }

    /// Takes up to `count` slots to destroy their maps: slots beyond the reserve that were not needed in the last
    /// [`SHRINK_INTERVAL`], the longest unused first. The caller owns them until [`Slots::return_reserved`] or
    /// [`Slots::add`].
    pub(crate) fn surplus(&mut self, now: Instant, count: usize) -> Vec<u32> {
        let since = *self.shrunk.get_or_insert(now);
        if now.duration_since(since) < SHRINK_INTERVAL {
            return Vec::new();
        }
        let surplus = self.lowest_free.min(self.free.len()).saturating_sub(self.target());
        if surplus <= count {
            self.shrunk = Some(now);
            self.lowest_free = self.free.len() - surplus;
        } else {
            self.lowest_free -= count;
        }
        self.free.drain(..surplus.min(count)).collect()
    }

    /// Returns the time until [`Slots::surplus`] may return slots; `None` while no more than the reserve is free.
    pub(crate) fn next_shrink(&self, now: Instant) -> Option<Duration> {
        let since = self.shrunk.unwrap_or(now);
        (self.free.len() > self.target()).then(|| (since + SHRINK_INTERVAL).saturating_duration_since(now))
    }

    /// Whether less than half of the desired number is ready.
    pub(crate) fn are_few(&self) -> bool {
        self.free.len() * 2 < self.target()
    }

    fn target(&self) -> usize {
        match self.taken * 4 > self.reserve.first {
            true => self.reserve.grown,
            false => self.reserve.first,
        }
    }

    /// Begins the quarantine of a deleted endpoint's slot.
    pub(crate) fn quarantine(&mut self, slot: u32, now: Instant) {
        if slot != 0 {
            self.quarantined.push_back((now, slot));
        }
    }

    /// Takes the slots after their quarantine: the caller empties their maps, then [`Slots::add`] makes them ready.
    pub(crate) fn end_quarantine(&mut self, now: Instant) -> Vec<u32> {
        let done =
            self.quarantined.iter().take_while(|(since, _)| now.duration_since(*since) >= QUARANTINE).count();
        self.quarantined.drain(..done).map(|(_, slot)| slot).collect()
    }

    /// Reserves slots for new maps: as many as are missing, at most a batch. The caller owns them until [`Slots::add`].
    pub(crate) fn missing(&mut self) -> Vec<u32> {
        self.reserve(self.target().saturating_sub(self.free.len()).min(self.reserve.first))
    }

    /// Reserves up to `count` slots for new maps.
    pub(crate) fn reserve(&mut self, count: usize) -> Vec<u32> {
        let mut reserved = self.spare.split_off(self.spare.len().saturating_sub(count));
        let end = self.fresh.saturating_add((count - reserved.len()) as u32).min(self.limit);
        reserved.extend(self.fresh..end);
        self.fresh = end;
        reserved
    }

    /// Returns reserved slots for which no maps could be created.
    pub(crate) fn return_reserved(&mut self, slots: impl IntoIterator<Item = u32>) {
        self.spare.extend(slots);
    }

    /// Returns the ready slots.
    pub(crate) fn free(&self) -> &[u32] {
        &self.free
    }

    /// Takes the ready slots that `which` selects.
    pub(crate) fn withdraw(&mut self, mut which: impl FnMut(u32) -> bool) -> Vec<u32> {
        self.free.extract_if(.., |slot| which(*slot)).collect()
    }

    /// Makes slots ready; their maps must be empty.
    pub(crate) fn add(&mut self, slots: impl IntoIterator<Item = u32>) {
        self.free.extend(slots);
    }

    /// Returns the number of ready slots.
    pub(crate) fn ready(&self) -> usize {
        self.free.len()
    }

    /// Whether slots are in quarantine.
    pub(crate) fn any_quarantined(&self) -> bool {
        !self.quarantined.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(limit: u32, first: usize, grown: usize) -> Slots {
        Slots::new(limit, Reserve { first, grown })
    }

    #[test]
    fn slots_are_made_ahead_and_more_when_pods_come() {
        let mut slots = slots(65536, 8, 32);
        assert!(slots.are_few());
        let made = slots.missing();
        assert_eq!(made, (1..=8).collect::<Vec<_>>());
        slots.add(made);
        for _ in 0..2 {
            slots.take().unwrap();
        }
        assert!(!slots.are_few(), "of 8");
        slots.take().unwrap();
        assert!(slots.are_few(), "of 32");
        for made in [8, 8, 8, 3, 0] {
            let missing = slots.missing();
            assert_eq!(missing.len(), made, "a batch at a time, each ready when it is made");
            slots.add(missing);
        }
        assert_eq!(slots.ready(), 32);
        for _ in 0..16 {
            slots.take().unwrap();
        }
        assert!(!slots.are_few(), "half full");
        slots.take().unwrap();
        assert!(slots.are_few());
    }

    #[test]
    fn a_slot_is_in_quarantine_before_it_is_taken_again() {
        let mut slots = slots(65536, 2, 2);
        let start = Instant::now();
        slots.quarantine(5, start);
        slots.quarantine(6, start + Duration::from_millis(500));
        assert!(slots.end_quarantine(start + Duration::from_millis(999)).is_empty());
        assert_eq!(slots.end_quarantine(start + Duration::from_millis(1400)), [5]);
        assert_eq!(slots.take(), None, "not before its map is emptied");
        slots.add([5]);
        assert_eq!(slots.take(), Some(5));
        assert!(slots.any_quarantined());
        assert_eq!(slots.end_quarantine(start + Duration::from_secs(2)), [6]);
        assert!(!slots.any_quarantined());
    }

    #[test]
    fn slots_beyond_the_reserve_are_surplus_once_they_are_not_needed() {
        let mut slots = slots(65536, 4, 4);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        slots.add(1..=20);
        assert_eq!(slots.next_shrink(start), Some(SHRINK_INTERVAL));
        assert!(slots.surplus(start, 100).is_empty());
        // A wave takes all but two, and returns them.
        let taken: Vec<u32> = (0..18).filter_map(|_| slots.take()).collect();
        slots.add(taken);
        assert!(slots.surplus(at(59), 100).is_empty());
        assert!(slots.surplus(at(60), 100).is_empty(), "the wave needed them");
        for _ in 0..3 {
            let slot = slots.take().unwrap();
            slots.add([slot]);
        }
        assert!(slots.surplus(at(119), 100).is_empty());
        // 19 were enough, of which 4 are the reserve; a few at once.
        assert_eq!(slots.surplus(at(120), 10).len(), 10);
        assert_eq!(slots.next_shrink(at(120)), Some(Duration::ZERO));
        assert_eq!(slots.surplus(at(120), 10).len(), 5);
        assert_eq!(slots.ready(), 5);
        assert!(slots.surplus(at(120), 10).is_empty());
        assert_eq!(slots.surplus(at(180), 10).len(), 1);
        assert_eq!((slots.ready(), slots.next_shrink(at(240))), (4, None));
        assert!(slots.surplus(at(240), 10).is_empty());
    }

    #[test]
    fn a_restart_restores_occupied_slots() {
        let mut slots = slots(65536, 4, 4);
        let free = slots.restore(&BTreeSet::from([1, 2, 3, 9]), &BTreeSet::from([2]));
        assert_eq!(free, [9, 3, 1]);
        assert_eq!(slots.take(), Some(1));
        assert_eq!(slots.take(), Some(3));
        assert_eq!(slots.missing(), [10, 11, 12]);
    }

    #[test]
    fn slots_end_at_the_limit() {
        let mut slots = slots(4, 8, 8);
        assert_eq!(slots.missing(), [1, 2, 3]);
        assert!(slots.missing().is_empty());
        assert!(slots.reserve(1).is_empty());
    }

    #[test]
    fn slots_whose_maps_could_not_be_created_are_reserved_again() {
        let mut slots = slots(65536, 4, 4);
        for _ in 0..100_000 {
            let missing = slots.missing();
            assert_eq!(missing.len(), 4);
            slots.return_reserved(missing);
        }
        assert_eq!(slots.reserve(6), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn ready_slots_are_taken_by_choice() {
        let mut slots = slots(65536, 4, 4);
        slots.add([1, 2, 3, 4]);
        assert_eq!(slots.withdraw(|slot| slot % 2 == 0), [2, 4]);
        assert_eq!(slots.free(), [1, 3]);
    }
}
