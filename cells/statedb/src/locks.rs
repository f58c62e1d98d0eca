//! Rules of write transactions: no deadlock, and no long blocking of an executor's thread.
//!
//! A thread has at most one transaction of a database: a second one could wait for a table that the first one holds.
//! All builds check this. Threads that hold transactions of several databases must begin them in the same order; only
//! debug builds check this, since the check takes a global lock. A commit counts transactions that took too long.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::panic::Location;
use std::task::{Context, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::coop::poll_proceed;

use crate::txn::Few;

type Place = &'static Location<'static>;

/// The maximum duration of a write transaction on an executor's thread; longer ones belong on a blocking thread.
pub(crate) const LONG: Duration = Duration::from_micros(100);

/// Write transactions of one table and source location that held an executor's thread for longer than 100 us.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LongWrite {
    /// The source location at which they began.
    pub place: Place,
    /// Their number.
    pub count: u64,
    /// The longest duration.
    pub longest: Duration,
}

/// The long writes of a table, by source location.
#[derive(Default)]
pub(crate) struct LongWrites(Mutex<Vec<LongWrite>>);

impl LongWrites {
    pub(crate) fn count(&self, place: Place, took: Duration) {
        let mut writes = self.0.lock();
        match writes.iter_mut().find(|write| write.place == place) {
            Some(write) => {
                write.count += 1;
                write.longest = write.longest.max(took);
            }
            None => writes.push(LongWrite { place, count: 1, longest: took }),
        }
    }

    /// Returns all of them, the longest first.
    pub(crate) fn all(&self) -> Vec<LongWrite> {
        let mut writes = self.0.lock().clone();
        writes.sort_by_key(|write| std::cmp::Reverse(write.longest));
        writes
    }
}

/// Whether this thread runs a tokio task. Tokio has no API for it, so it is detected by the coop budget: a task has a
/// limited one, blocking threads and threads of other runtimes an unlimited one. The consumed budget is restored.
pub(crate) fn on_executor() -> bool {
    /// More than the coop budget of a task, which is 128 in tokio.
    const STEPS: usize = 256;
    let mut context = Context::from_waker(Waker::noop());
    let mut taken = Vec::with_capacity(STEPS);
    let limited = (0..STEPS).any(|_| match poll_proceed(&mut context) {
        std::task::Poll::Ready(step) => {
            taken.push(step);
            false
        }
        std::task::Poll::Pending => true,
    });
    // Each dropped guard restores the budget from before its `poll_proceed`, so they are dropped in reverse order.
    while taken.pop().is_some() {}
    limited
}

/// Pairs of databases (outer, inner) of nested transactions, with the source locations of both.
static ORDER: Mutex<BTreeMap<(u64, u64), [Place; 2]>> = Mutex::new(BTreeMap::new());

/// A transaction that the current thread holds.
struct Outer {
    db: u64,
    tables: Names,
    place: Place,
}

type Names = Few<&'static str>;

thread_local! {
    static HELD: RefCell<Vec<Outer>> = const { RefCell::new(Vec::new()) };
}

/// A guard that unregisters a transaction of the current thread when it is dropped.
pub(crate) struct Held {
    db: u64,
    not_send: PhantomData<*const ()>,
}

/// Registers a transaction before its tables are locked.
///
/// # Panics
/// If the current thread holds a transaction of the same database; in debug builds also if it holds one of a database
/// that was locked after this one before. The message names the source locations.
pub(crate) fn enter(db: u64, names: impl Iterator<Item = &'static str>, place: Place) -> Held {
    HELD.with_borrow_mut(|held| {
        let tables = names.collect::<Names>();
        if !held.is_empty() {
            check_nested(held, db, &tables, place);
        }
        held.push(Outer { db, tables, place });
    });
    Held { db, not_send: PhantomData }
}

#[cold]
fn check_nested(held: &[Outer], db: u64, tables: &Names, place: Place) {
    if let Some(outer) = held.iter().find(|outer| outer.db == db) {
        panic!(
            "write transaction on {} at {place} inside the one on {} at {}: lock all tables in one `db.write(..)`, or \
             commit the first",
            tables.join(", "),
            outer.tables.join(", "),
            outer.place,
        );
    }
    if cfg!(debug_assertions) {
        held.iter().for_each(|outer| check_order(outer, db, tables, place));
    }
}

fn check_order(outer: &Outer, db: u64, tables: &Names, place: Place) {
    let mut order = ORDER.lock();
    if let Some([first, second]) = order.get(&(db, outer.db)) {
        panic!(
            "write transaction on {} at {place} inside the one on {} at {}, databases which were locked in the other order \
             at {second} inside {first}: always lock them in the same order",
            tables.join(", "),
            outer.tables.join(", "),
            outer.place,
        );
    }
    order.entry((outer.db, db)).or_insert([outer.place, place]);
}

/// Whether this thread holds a transaction of the database.
pub(crate) fn holds(db: u64) -> bool {
    HELD.with_borrow(|held| held.iter().any(|outer| outer.db == db))
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| {
            // Mostly the last one.
            if let Some(at) = held.iter().rposition(|outer| outer.db == self.db) {
                held.remove(at);
            }
        });
    }
}
