//! Numbers of frontends and backends in the kernel.

use std::collections::HashSet;

use foldhash::fast::RandomState;

/// Hands out numbers from 1 upwards; one that was given back comes again only after all others, so that a row which
/// still names it does not come to mean something else.
#[derive(Debug)]
pub(crate) struct Ids {
    used: HashSet<u32, RandomState>,
    next: u32,
    max: u32,
}

impl Ids {
    pub(crate) fn new(max: u32) -> Ids {
        Ids { used: HashSet::default(), next: 1, max }
    }

    /// A free number; none if all are in use.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.used.len() >= self.max as usize {
            return None;
        }
        while self.used.contains(&self.next) {
            self.next = if self.next >= self.max { 1 } else { self.next + 1 };
        }
        let id = self.next;
        self.used.insert(id);
        self.next = if id >= self.max { 1 } else { id + 1 };
        Some(id)
    }

    /// Marks a number of an earlier run as used; false if it is already, or is none.
    pub(crate) fn reserve(&mut self, id: u32) -> bool {
        self.seen(id);
        (1..=self.max).contains(&id) && self.used.insert(id)
    }

    /// Makes the next number a later one: some row names this one.
    pub(crate) fn seen(&mut self, id: u32) {
        if (self.next..=self.max).contains(&id) {
            self.next = if id >= self.max { 1 } else { id + 1 };
        }
    }

    pub(crate) fn give_back(&mut self, id: u32) {
        self.used.remove(&id);
    }

    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.used.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_again_only_after_all_others() {
        let mut ids = Ids::new(4);
        assert_eq!([ids.take(), ids.take()], [Some(1), Some(2)]);
        ids.give_back(1);
        assert_eq!([ids.take(), ids.take(), ids.take(), ids.take()], [Some(3), Some(4), Some(1), None]);
        ids.give_back(3);
        assert_eq!(ids.take(), Some(3));
    }

    #[test]
    fn numbers_of_an_earlier_run_stay_and_later_ones_follow() {
        let mut ids = Ids::new(100);
        assert!(ids.reserve(7));
        assert!(!ids.reserve(7) && !ids.reserve(0) && !ids.reserve(101));
        assert_eq!(ids.take(), Some(8));
        ids.seen(20);
        assert_eq!(ids.take(), Some(21));
    }
}
