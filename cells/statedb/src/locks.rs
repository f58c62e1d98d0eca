//! Debug check: one write transaction a thread and database, so that writers cannot wait for each other in a circle.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::panic::Location;

thread_local! {
    static HELD: RefCell<Vec<(u64, String, &'static Location<'static>)>> = const { RefCell::new(Vec::new()) };
}

/// Notes the end of a transaction of this thread.
pub(crate) struct Held {
    db: u64,
    not_send: PhantomData<*const ()>,
}

/// Notes that this thread is about to lock tables.
///
/// # Panics
/// If it has locked others of the same database; the message names both places.
pub(crate) fn enter(
    db: u64,
    names: impl Iterator<Item = &'static str>,
    place: &'static Location<'static>,
) -> Option<Held> {
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
        held.push((db, names, place));
    });
    Some(Held { db, not_send: PhantomData })
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| held.retain(|(db, ..)| *db != self.db));
    }
}
