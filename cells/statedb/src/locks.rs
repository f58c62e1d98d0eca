//! Rules of write transactions: no deadlock, and no long stay on an executor's thread.
//!
//! A thread has one transaction of a database at a time: a second one would wait for itself. That is checked in all builds.
//! Where a thread has transactions of several databases, it takes them in the same order as other threads; that is checked
//! in debug builds, since the order is kept behind a global lock. A commit counts each transaction that was long.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::panic::Location;
use std::task::{Context, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::task::coop::poll_proceed;

type Place = &'static Location<'static>;

/// How long a write transaction may hold a thread on which tasks run; what takes longer belongs to a blocking thread.
pub(crate) const LONG: Duration = Duration::from_micros(100);

/// Write transactions of one table and place that held a thread on which tasks run for longer than 100 us.
#[derive(Clone, Debug)]
pub struct LongWrite {
    /// The place in the code that began them.
    pub place: Place,
    /// How many there were.
    pub count: u64,
    /// The longest duration.
    pub longest: Duration,
}

/// Those of a table, by place.
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

    /// The longest first.
    pub(crate) fn all(&self) -> Vec<LongWrite> {
        let mut writes = self.0.lock().clone();
        writes.sort_by_key(|write| std::cmp::Reverse(write.longest));
        writes
    }
}

/// Whether this thread runs a task: tokio gives a task steps before it has to let others run, and a blocking thread, or one
/// that is not tokio's, any number. The steps taken to find out are given back.
pub(crate) fn on_executor() -> bool {
    /// More than a task has.
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
    // Each restores what there was before it.
    while taken.pop().is_some() {}
    limited
}

/// Databases whose transactions were begun one inside the other, with the places of both.
static ORDER: Mutex<BTreeMap<(u64, u64), [Place; 2]>> = Mutex::new(BTreeMap::new());

/// A transaction that this thread has.
struct Outer {
    db: u64,
    tables: Names,
    place: Place,
}

type Names = SmallVec<[&'static str; 2]>;

thread_local! {
    static HELD: RefCell<Vec<Outer>> = const { RefCell::new(Vec::new()) };
}

/// Records the end of a transaction of this thread.
pub(crate) struct Held {
    db: u64,
    not_send: PhantomData<*const ()>,
}

/// Records that this thread is about to lock tables.
///
/// # Panics
/// If it has locked tables of the same database; in debug builds also if it has locked those of another one that was locked
/// inside of this one before. The message names the places.
pub(crate) fn enter(db: u64, names: impl Iterator<Item = &'static str>, place: Place) -> Held {
    HELD.with_borrow_mut(|held| {
        let tables = names.collect::<Names>();
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
            held.iter().for_each(|outer| check_order(outer, db, &tables, place));
        }
        held.push(Outer { db, tables, place });
    });
    Held { db, not_send: PhantomData }
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

impl Drop for Held {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| held.retain(|outer| outer.db != self.db));
    }
}
