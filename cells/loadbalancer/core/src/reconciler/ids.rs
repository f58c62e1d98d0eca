//! Allocation of ids of frontends and backends.

use crate::model::fast_map::FastMap;
use crate::reconciler::id_file::Position;

/// A set of ids, most of which follow each other: by their upper bits, a bit each.
#[derive(Debug, Default)]
struct IdSet {
    words: FastMap<u32, u64>,
    len: usize,
}

impl IdSet {
    fn place(id: u32) -> (u32, u64) {
        (id / u64::BITS, 1 << (id % u64::BITS))
    }

    fn contains(&self, id: u32) -> bool {
        let (word, bit) = Self::place(id);
        self.words.get(&word).is_some_and(|bits| bits & bit != 0)
    }

    /// Adds an id; false if it is there already.
    fn insert(&mut self, id: u32) -> bool {
        let (word, bit) = Self::place(id);
        let bits = self.words.entry(word).or_default();
        let is_new = *bits & bit == 0;
        *bits |= bit;
        self.len += usize::from(is_new);
        is_new
    }

    fn remove(&mut self, id: u32) {
        let (word, bit) = Self::place(id);
        let Some(bits) = self.words.get_mut(&word).filter(|bits| **bits & bit != 0) else { return };
        *bits &= !bit;
        self.len -= 1;
        if *bits == 0 {
            self.words.remove(&word);
        }
    }
}

/// An allocator of ids from 1 upwards; a released id is assigned again only after all others, because entries that
/// still refer to it must not get another meaning.
#[derive(Debug)]
pub(crate) struct Ids {
    used: IdSet,
    next: u32,
    max: u32,
    /// Whether all ids were assigned at least once.
    wrapped: bool,
    /// The number of ids after the next one that may be assigned before the file must be written again.
    reserved: u32,
    /// Whether more than that were assigned.
    overdrawn: bool,
}

impl Ids {
    pub(crate) fn new(max: u32) -> Ids {
        Ids { used: IdSet::default(), next: 1, max, wrapped: false, reserved: 0, overdrawn: false }
    }

    /// Continues at the reserved position of the previous run, from its file; called once all ids in the maps are
    /// known. Ids that were released before may still be referred to by connections. Without a file, but with entries,
    /// it continues half a cycle further: as far as possible from the ids that were in use last.
    pub(crate) fn resume(&mut self, file: Option<Position>) {
        match file {
            Some(Position { next, wrapped }) if (1..=self.max).contains(&next) => {
                // Before all ids were assigned once, entries after the position belong to another agent that has run
                // since.
                if wrapped || next > self.next {
                    self.next = next;
                }
                self.wrapped |= wrapped;
            }
            _ if self.next == 1 && self.used.len == 0 => {}
            _ => {
                let Position { next, wrapped } = self.position_after(self.max / 2);
                (self.next, self.wrapped) = (next, wrapped);
            }
        }
    }

    /// Whether the file must be written before the ids that were assigned last are in use.
    pub(crate) fn is_reservation_due(&self, stride: u32) -> bool {
        self.overdrawn || (self.reserved > 0 && self.reserved < stride / 2)
    }

    /// Reserves this number of ids from the next one on; returns the position for the file.
    pub(crate) fn reserve_ahead(&mut self, stride: u32) -> Position {
        (self.reserved, self.overdrawn) = (stride, false);
        self.position_after(stride)
    }

    /// Returns the position after this number of ids.
    pub(crate) fn position_after(&self, count: u32) -> Position {
        let (at, max) = (u64::from(self.next - 1) + u64::from(count), u64::from(self.max));
        Position { next: (at % max) as u32 + 1, wrapped: self.wrapped || at >= max }
    }

    /// Advances to the id after this one.
    fn advance(&mut self) {
        self.wrapped |= self.next >= self.max;
        self.next = if self.next >= self.max { 1 } else { self.next + 1 };
        self.overdrawn |= self.reserved == 0;
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// Assigns a free id; `None` if all are in use.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.used.len >= self.max as usize {
            return None;
        }
        while self.used.contains(self.next) {
            self.advance();
        }
        let id = self.next;
        self.used.insert(id);
        self.advance();
        Some(id)
    }

    /// Marks an id of the previous run as used; false if it is used already or invalid.
    pub(crate) fn reserve(&mut self, id: u32) -> bool {
        self.seen(id);
        (1..=self.max).contains(&id) && self.used.insert(id)
    }

    /// Advances the next id beyond this one, which occurs in the maps.
    pub(crate) fn seen(&mut self, id: u32) {
        if (self.next..=self.max).contains(&id) {
            self.next = if id >= self.max { 1 } else { id + 1 };
        }
    }

    pub(crate) fn release(&mut self, id: u32) {
        self.used.remove(id);
    }

    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.used.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_reused_only_after_all_others() {
        let mut ids = Ids::new(4);
        assert_eq!([ids.take(), ids.take()], [Some(1), Some(2)]);
        ids.release(1);
        assert_eq!([ids.take(), ids.take(), ids.take(), ids.take()], [Some(3), Some(4), Some(1), None]);
        ids.release(3);
        assert_eq!(ids.take(), Some(3));
    }

    #[test]
    fn sets_of_ids_are_those_of_numbers() {
        let (mut set, mut plain) = (IdSet::default(), std::collections::HashSet::new());
        for step in 0u32..4000 {
            // Ids around the borders of words, and far from each other.
            let id = (step * 7919 % 200).pow(1 + step % 4);
            match step % 3 {
                0 => {
                    set.remove(id);
                    plain.remove(&id);
                }
                _ => assert_eq!(set.insert(id), plain.insert(id)),
            }
            assert_eq!((set.len, set.contains(id)), (plain.len(), plain.contains(&id)));
        }
        plain.drain().for_each(|id| set.remove(id));
        assert!(set.len == 0 && set.words.is_empty());
    }

    #[test]
    fn ids_of_the_previous_run_stay_and_later_ones_follow() {
        let mut ids = Ids::new(100);
        assert!(ids.reserve(7));
        assert!(!ids.reserve(7) && !ids.reserve(0) && !ids.reserve(101));
        assert_eq!(ids.take(), Some(8));
        ids.seen(20);
        assert_eq!(ids.take(), Some(21));
    }

    #[test]
    fn ids_of_the_previous_run_are_not_reassigned_after_a_crash() {
        let (max, stride) = (1000, 10);
        let mut ids = Ids::new(max);
        let mut file = None;
        let mut given = Vec::new();
        for round in 0..40 {
            for _ in 0..round % 7 {
                let id = ids.take().unwrap();
                assert!(!given.contains(&id), "round {round}");
                given.push(id);
            }
            // The file is written before the ids are in use.
            if ids.is_reservation_due(stride) {
                file = Some(ids.reserve_ahead(stride));
            }
            if round % 5 == 4 {
                // All ids were released before the crash: the maps are empty.
                ids = Ids::new(max);
                ids.resume(file);
            }
        }
        assert!(given.len() > 100 && given.iter().max() < Some(&500), "{given:?}");
    }

    #[test]
    fn a_run_continues_at_the_position_of_the_file() {
        let at = |next, wrapped| Some(Position { next, wrapped });
        let resumed = |row: u32, file| {
            let mut ids = Ids::new(100);
            if row > 0 {
                ids.reserve(row);
            }
            ids.resume(file);
            ids.take().unwrap()
        };
        assert_eq!(resumed(0, None), 1, "nothing was there before");
        assert_eq!(resumed(20, None), 71, "half a cycle further when the file is lost");
        assert_eq!(resumed(70, None), 21);
        assert_eq!(resumed(20, at(31, false)), 31);
        assert_eq!(resumed(50, at(31, false)), 51, "another agent ran since");
        assert_eq!(resumed(90, at(31, true)), 31);
        assert_eq!(resumed(20, at(0, false)), 71, "no position at all");
    }

    #[test]
    fn a_reservation_is_due_before_it_is_used_up() {
        let mut ids = Ids::new(100);
        assert!(!ids.is_reservation_due(10), "nothing was given");
        ids.take();
        assert!(ids.is_reservation_due(10));
        assert_eq!(ids.reserve_ahead(10), Position { next: 12, wrapped: false });
        (0..5).for_each(|_| _ = ids.take());
        assert!(!ids.is_reservation_due(10));
        ids.take();
        assert!(ids.is_reservation_due(10));
        assert_eq!(ids.reserve_ahead(96), Position { next: 4, wrapped: true });
    }
}
