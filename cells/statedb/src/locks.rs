//! What write transactions must not do: wait for each other in a circle, and hold up an executor.
//!
//! In debug builds a thread has one transaction of a database at a time, and where it has those of several databases it
//! takes them in the same order as others; both are checked. In all builds a commit counts a transaction that was long.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::panic::Location;
use std::task::{Context, Waker};
use std::time::Duration;

use parking_lot::Mutex;
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

thread_local! {
    static HELD: RefCell<Vec<(u64, String, Place)>> = const { RefCell::new(Vec::new()) };
}

/// Notes the end of a transaction of this thread.
pub(crate) struct Held {
    db: u64,
    not_send: PhantomData<*const ()>,
}

/// Notes that this thread is about to lock tables.
///
/// # Panics
/// If it has locked others of the same database, or others of another one that was locked inside of this one before; the
/// message names the places.
pub(crate) fn enter(db: u64, names: impl Iterator<Item = &'static str>, place: Place) -> Option<Held> {
    if !cfg!(debug_assertions) {
        return None;
    }
    let names = names.collect::<Vec<_>>().join(", ");
    HELD.with_borrow_mut(|held| {
        if let Some((_, before, there)) = held.iter().find(|(other, ..)| *other == db) {
            panic!(
                "write transaction on {names} at {place} inside the one on {before} at {there}: lock all tables in one \
                 `db.write(..)`, or commit the first"
            );
        }
        for (outer, before, there) in held.iter() {
            let mut order = ORDER.lock();
            if let Some([first, second]) = order.get(&(db, *outer)) {
                panic!(
                    "write transaction on {names} at {place} inside the one on {before} at {there}, databases which were \
                     locked in the other order at {second} inside {first}: always lock them in the same order"
                );
            }
            order.entry((*outer, db)).or_insert([there, place]);
        }
        held.push((db, names, place));
    });
    Some(Held { db, not_send: PhantomData })
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| held.retain(|(db, ..)| *db != self.db));
    }
}
