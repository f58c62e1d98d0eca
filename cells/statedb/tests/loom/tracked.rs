//! Readers of changes and commits: no delete is missed, and none is kept without a reader. The decisions are those of
//! the product's trackers; the table around them stands for versions and their publication, which `published` models.

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};

use crate::changes::trackers::{Graves, Tracker, Trackers};
use crate::*;

/// A model of a table that has only deletes, with the steps of commits and readers.
struct Table {
    lock: Mutex<()>,
    trackers: Mutex<Trackers<&'static str>>,
    published: Mutex<State>,
    woken: AtomicUsize,
}

#[derive(Clone)]
struct State {
    revision: u64,
    graves: Vec<u64>,
}

/// The deletes of a commit, kept as revisions instead of rows.
struct Deletes<'s> {
    graves: &'s mut Vec<u64>,
    deleted: Vec<u64>,
}

impl Graves for Deletes<'_> {
    fn bury(&mut self) {
        self.graves.append(&mut self.deleted);
    }

    fn newest(&self) -> Option<u64> {
        self.deleted.last().copied()
    }

    fn forget(&mut self, upto: u64) -> Option<u64> {
        self.graves.extract_if(.., |grave| *grave <= upto).last()
    }
}

impl Table {
    fn new() -> Arc<Self> {
        let state = State { revision: 0, graves: Vec::new() };
        let (lock, trackers) = (Mutex::new(()), Mutex::new(Trackers::new()));
        Arc::new(Table { lock, trackers, published: Mutex::new(state), woken: AtomicUsize::new(0) })
    }

    fn snapshot(&self) -> State {
        self.published.lock().unwrap().clone()
    }

    fn delete_one(&self) {
        let guard = self.lock.lock().unwrap();
        self.commit(1);
        // Stands for closing the watches.
        self.woken.fetch_add(1, Ordering::SeqCst);
        drop(guard);
        self.collect_seen();
    }

    fn commit(&self, deletes: u64) {
        let mut state = self.snapshot();
        let mut trackers = self.trackers.lock().unwrap();
        let deleted: Vec<u64> = (state.revision + 1..=state.revision + deletes).collect();
        state.revision += deletes;
        trackers.keep(&mut Deletes { graves: &mut state.graves, deleted });
        *self.published.lock().unwrap() = state;
    }

    fn collect_seen(&self) {
        let first = self.snapshot().graves.first().copied();
        if first.is_some_and(|first| self.trackers.lock().unwrap().all_have_seen(first)) {
            // Loom does not branch when a lock is released: this access lets it explore orders in which the writer
            // holds the table.
            self.woken.load(Ordering::SeqCst);
            let Ok(guard) = self.lock.try_lock() else { return };
            self.commit(0);
            drop(guard);
            self.collect_seen();
        }
    }

    /// Registers a reader; returns it and its initial revision.
    fn register(&self) -> (Arc<Tracker<&'static str>>, u64) {
        let mut trackers = self.trackers.lock().unwrap();
        let now = self.snapshot().revision;
        (trackers.register(now, "reader"), now)
    }

    /// Reads from a revision on; asserts that every later delete is found.
    fn read(&self, tracker: &Tracker<&'static str>, from: u64) -> u64 {
        let state = self.snapshot();
        let found: Vec<u64> = state.graves.iter().copied().filter(|grave| *grave > from).collect();
        assert_eq!(found, (from + 1..=state.revision).collect::<Vec<_>>(), "a delete is missed");
        tracker.advance(state.revision);
        self.collect_seen();
        state.revision
    }

    fn unregister(&self, tracker: &Arc<Tracker<&'static str>>) {
        self.trackers.lock().unwrap().unregister(tracker);
        self.collect_seen();
    }
}

#[test]
fn a_reader_misses_no_delete_and_seen_deletes_are_removed() {
    model(|| {
        let table = Table::new();
        let reader = {
            let table = table.clone();
            thread::spawn(move || {
                let (tracker, now) = table.register();
                let seen = table.read(&tracker, now);
                (tracker, seen)
            })
        };
        table.delete_one();
        table.delete_one();
        let (tracker, seen) = reader.join().unwrap();
        assert_eq!(table.snapshot().graves, (seen + 1..=2).collect::<Vec<_>>());
        assert_eq!(table.read(&tracker, seen), 2);
        assert!(table.snapshot().graves.is_empty());
    });
}

#[test]
fn without_readers_nothing_is_kept() {
    model(|| {
        let table = Table::new();
        let readers = [0; 2].map(|_| {
            let table = table.clone();
            thread::spawn(move || {
                let (tracker, _) = table.register();
                table.unregister(&tracker);
            })
        });
        table.delete_one();
        for reader in readers {
            reader.join().unwrap();
        }
        assert!(table.snapshot().graves.is_empty(), "kept without a reader");
    });
}

#[test]
fn reading_from_a_revision_is_refused_or_misses_nothing() {
    model(|| {
        let table = Table::new();
        let (slow, start) = table.register();
        let other = {
            let table = table.clone();
            thread::spawn(move || {
                let (tracker, _) = table.register();
                let trackers = table.trackers.lock().unwrap();
                assert!(trackers.all().iter().any(|other| other.owner == "reader"));
                let known = trackers.rewind(&tracker, start).is_ok();
                drop(trackers);
                if known {
                    table.read(&tracker, start);
                }
                table.unregister(&tracker);
            })
        };
        table.delete_one();
        table.read(&slow, start);
        table.unregister(&slow);
        other.join().unwrap();
        assert!(table.snapshot().graves.is_empty(), "kept without a reader");
    });
}
