//! Which slots of `ep_policies` hold an empty policy map that waits for an endpoint: the bookkeeping, without a kernel.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// How long a slot rests after its endpoint went: packets under way may still look into its map.
pub const QUARANTINE: Duration = Duration::from_secs(1);

/// How long slots beyond the reserve must have been free before their maps are destroyed: what comes and goes in waves
/// shall not wait for a grace period a map each time.
pub const SHRINK_INTERVAL: Duration = Duration::from_secs(60);

/// Slots by state. Slot 0 is never given out: a settings row that is all zero names it.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Vec<u32>,
    resting: VecDeque<(Instant, u32)>,
    /// Numbers whose map could not be made.
    spare: Vec<u32>,
    /// The first slot that never had a map.
    fresh: u32,
    limit: u32,
    /// How many have been given out.
    taken: usize,
    reserve: Reserve,
    /// The fewest that were free since the last shrinking, and when that was.
    lowest_free: usize,
    shrunk: Option<Instant>,
}

/// How many slots shall be ready.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reserve {
    /// At first; and as many are made at once.
    pub(crate) first: usize,
    /// Once a quarter of the first ones are taken: pods come.
    pub(crate) grown: usize,
}

impl Slots {
    /// No slot has a map; slots are numbered below `limit`.
    pub(crate) fn new(limit: u32, reserve: Reserve) -> Slots {
        let (free, resting, spare) = (Vec::new(), VecDeque::new(), Vec::new());
        Slots { free, resting, spare, fresh: 1, limit, taken: 0, reserve, lowest_free: 0, shrunk: None }
    }

    /// Takes over slots of a previous run: `occupied` have a map, `used` are endpoints'. Returns those that are free now,
    /// whose maps must be emptied.
    pub(crate) fn restore(&mut self, occupied: &BTreeSet<u32>, used: &BTreeSet<u32>) -> Vec<u32> {
        self.fresh = occupied.iter().chain(used).max().map_or(1, |last| last + 1);
        // Lowest last, as the last one is given out first.
        self.free =
            occupied.iter().rev().copied().filter(|slot| *slot != 0 && !used.contains(slot)).collect();
        self.free.clone()
    }

    /// A slot with an empty map, if one is ready.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.taken += 1;
        let slot = self.free.pop();
        self.lowest_free = self.lowest_free.min(self.free.len());
        slot
    }

    /// Withdraws up to `count` slots whose maps are to be destroyed: those that no taker of the last
    /// [`SHRINK_INTERVAL`] needed, beyond the reserve. The longest unused ones; they are the caller's until
    /// [`Slots::return_numbers`] or [`Slots::add`].
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

    /// When [`Slots::surplus`] may have some next; `None` while no more than the reserve is free.
    pub(crate) fn next_shrink(&self, now: Instant) -> Option<Duration> {
        let since = self.shrunk.unwrap_or(now);
        (self.free.len() > self.target()).then(|| (since + SHRINK_INTERVAL).saturating_duration_since(now))
    }

    /// Whether less than half of what shall be ready is.
    pub(crate) fn are_few(&self) -> bool {
        self.free.len() * 2 < self.target()
    }

    fn target(&self) -> usize {
        match self.taken * 4 > self.reserve.first {
            true => self.reserve.grown,
            false => self.reserve.first,
        }
    }

    /// Lets the slot of an endpoint that is gone rest.
    pub(crate) fn rest(&mut self, slot: u32, now: Instant) {
        if slot != 0 {
            self.resting.push_back((now, slot));
        }
    }

    /// Slots that have rested: their maps must be emptied, then [`Slots::add`] makes them ready.
    pub(crate) fn rested(&mut self, now: Instant) -> Vec<u32> {
        let done =
            self.resting.iter().take_while(|(since, _)| now.duration_since(*since) >= QUARANTINE).count();
        self.resting.drain(..done).map(|(_, slot)| slot).collect()
    }

    /// Numbers for new maps: as many as are missing, at most so many as are made at once. They are the caller's until
    /// [`Slots::add`].
    pub(crate) fn missing(&mut self) -> Vec<u32> {
        self.reserve(self.target().saturating_sub(self.free.len()).min(self.reserve.first))
    }

    /// Up to `count` numbers for new maps.
    pub(crate) fn reserve(&mut self, count: usize) -> Vec<u32> {
        let mut numbers = self.spare.split_off(self.spare.len().saturating_sub(count));
        let end = self.fresh.saturating_add((count - numbers.len()) as u32).min(self.limit);
        numbers.extend(self.fresh..end);
        self.fresh = end;
        numbers
    }

    /// Takes numbers back for which no maps could be made.
    pub(crate) fn return_numbers(&mut self, numbers: impl IntoIterator<Item = u32>) {
        self.spare.extend(numbers);
    }

    /// The slots that are ready.
    pub(crate) fn free(&self) -> &[u32] {
        &self.free
    }

    /// Takes slots out of those that are ready: the ones for which this is true.
    pub(crate) fn withdraw(&mut self, mut which: impl FnMut(u32) -> bool) -> Vec<u32> {
        self.free.extract_if(.., |slot| which(*slot)).collect()
    }

    /// These slots have empty maps now.
    pub(crate) fn add(&mut self, slots: impl IntoIterator<Item = u32>) {
        self.free.extend(slots);
    }

    /// How many slots are ready.
    pub(crate) fn ready(&self) -> usize {
        self.free.len()
    }

    /// Whether slots are resting.
    pub(crate) fn any_resting(&self) -> bool {
        !self.resting.is_empty()
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
    fn a_slot_rests_before_it_is_given_out_again() {
        let mut slots = slots(65536, 2, 2);
        let start = Instant::now();
        slots.rest(5, start);
        slots.rest(6, start + Duration::from_millis(500));
        assert!(slots.rested(start + Duration::from_millis(999)).is_empty());
        assert_eq!(slots.rested(start + Duration::from_millis(1400)), [5]);
        assert_eq!(slots.take(), None, "not before its map is emptied");
        slots.add([5]);
        assert_eq!(slots.take(), Some(5));
        assert!(slots.any_resting());
        assert_eq!(slots.rested(start + Duration::from_secs(2)), [6]);
        assert!(!slots.any_resting());
    }

    #[test]
    fn slots_beyond_the_reserve_are_surplus_once_nobody_needs_them() {
        let mut slots = slots(65536, 4, 4);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        slots.add(1..=20);
        assert_eq!(slots.next_shrink(start), Some(SHRINK_INTERVAL));
        assert!(slots.surplus(start, 100).is_empty());
        // A wave takes all but two, and gives them back.
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
    fn a_restart_takes_over_what_is_there() {
        let mut slots = slots(65536, 4, 4);
        let free = slots.restore(&BTreeSet::from([1, 2, 3, 9]), &BTreeSet::from([2]));
        assert_eq!(free, [9, 3, 1]);
        assert_eq!(slots.take(), Some(1));
        assert_eq!(slots.take(), Some(3));
        assert_eq!(slots.missing(), [10, 11, 12]);
    }

    #[test]
    fn numbers_end_at_the_limit() {
        let mut slots = slots(4, 8, 8);
        assert_eq!(slots.missing(), [1, 2, 3]);
        assert!(slots.missing().is_empty());
        assert!(slots.reserve(1).is_empty());
    }

    #[test]
    fn numbers_whose_maps_could_not_be_made_come_again() {
        let mut slots = slots(65536, 4, 4);
        for _ in 0..100_000 {
            let missing = slots.missing();
            assert_eq!(missing.len(), 4);
            slots.return_numbers(missing);
        }
        assert_eq!(slots.reserve(6), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn ready_slots_are_withdrawn_by_choice() {
        let mut slots = slots(65536, 4, 4);
        slots.add([1, 2, 3, 4]);
        assert_eq!(slots.withdraw(|slot| slot % 2 == 0), [2, 4]);
        assert_eq!(slots.free(), [1, 3]);
    }
}
