//! The locks of the endpoints in the kernel, in the only order in which a thread may take them.
//!
//! | rank | lock | owner | held |
//! |---|---|---|---|
//! | 1 | [`Rank::Endpoint`] | `EndpointTable`, one of 64 by endpoint id | while map entries of one endpoint change |
//! | 2 | [`Rank::Programs`] | `PodPrograms` | shared to attach a program, exclusive to replace programs |
//! | 3 | [`Rank::ConntrackScan`] | `ConntrackPurge` | while connection tracking maps are scanned, some ms |
//! | 4 | [`Rank::State`] | each of those, and `PolicyPool` | for accesses to memory, never across a system call |
//!
//! A thread takes a lock only if its rank is above those of all locks that it holds. So it never holds two endpoints,
//! and never two states. Debug builds check each acquisition and panic on a violation; release builds do not check.

use std::ops::{Deref, DerefMut};

/// The rank of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Map entries of one endpoint.
    Endpoint,
    /// The programs that pods' interfaces get.
    Programs,
    /// A scan of connection tracking maps.
    ConntrackScan,
    /// Bookkeeping in memory.
    State,
}

/// A mutex with a rank.
#[derive(Debug)]
pub(crate) struct Mutex<T> {
    rank: Rank,
    inner: parking_lot::Mutex<T>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(rank: Rank, value: T) -> Mutex<T> {
        Mutex { rank, inner: parking_lot::Mutex::new(value) }
    }

    pub(crate) fn lock(&self) -> Guard<parking_lot::MutexGuard<'_, T>> {
        let held = held::Held::new(self.rank);
        Guard { inner: self.inner.lock(), _held: held }
    }
}

/// A reader-writer lock with a rank. A reader must not acquire it again: a writer queued in between would deadlock
/// both for ever.
#[derive(Debug)]
pub(crate) struct RwLock<T> {
    rank: Rank,
    inner: parking_lot::RwLock<T>,
}

impl<T> RwLock<T> {
    pub(crate) const fn new(rank: Rank, value: T) -> RwLock<T> {
        RwLock { rank, inner: parking_lot::RwLock::new(value) }
    }

    pub(crate) fn read(&self) -> Guard<parking_lot::RwLockReadGuard<'_, T>> {
        let held = held::Held::new(self.rank);
        Guard { inner: self.inner.read(), _held: held }
    }

    pub(crate) fn write(&self) -> Guard<parking_lot::RwLockWriteGuard<'_, T>> {
        let held = held::Held::new(self.rank);
        Guard { inner: self.inner.write(), _held: held }
    }
}

/// A guard of either lock.
pub(crate) struct Guard<G> {
    // Before the rank: fields are dropped in this order.
    inner: G,
    _held: held::Held,
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

#[cfg(debug_assertions)]
mod held {
    use std::cell::Cell;

    use super::Rank;

    thread_local! {
        /// A bit for each rank that the thread holds.
        static RANKS: Cell<u8> = const { Cell::new(0) };
    }

    /// The rank of a lock that this thread holds.
    pub(crate) struct Held(Rank);

    impl Held {
        pub(crate) fn new(rank: Rank) -> Held {
            RANKS.with(|ranks| {
                let held = ranks.get();
                assert!(held >> rank as u8 == 0, "lock order: {rank:?} while ranks {held:#06b} are held");
                ranks.set(held | 1 << rank as u8);
            });
            Held(rank)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            RANKS.with(|ranks| ranks.set(ranks.get() & !(1 << self.0 as u8)));
        }
    }
}

#[cfg(not(debug_assertions))]
mod held {
    /// Empty: release builds do not check.
    pub(crate) struct Held;

    impl Held {
        #[inline]
        pub(crate) fn new(_: super::Rank) -> Held {
            Held
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_the_order_of_their_ranks() {
        let endpoint = Mutex::new(Rank::Endpoint, ());
        let programs = RwLock::new(Rank::Programs, 1);
        let state = Mutex::new(Rank::State, 2);
        for _ in 0..2 {
            let first = endpoint.lock();
            let second = programs.read();
            *state.lock() += *second;
            // Released out of order, taken again.
            drop(first);
            drop(second);
            *programs.write() += 1;
        }
        assert_eq!(*state.lock(), 5);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_wrong_order_panics_in_debug_builds_and_releases_what_was_held() {
        let locks = [Rank::Endpoint, Rank::Programs, Rank::State].map(|rank| Mutex::new(rank, ()));
        for (first, second) in [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2)] {
            let other = Mutex::new(locks[second].rank, ());
            let wrong = || {
                let _first = locks[first].lock();
                let _second = other.lock();
            };
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wrong)).unwrap_err();
            let message = panic.downcast_ref::<String>().unwrap();
            assert!(message.starts_with("lock order: "), "{message}");
            drop(locks[first].lock());
        }
    }
}
