//! Owners of a counted pointer: all accesses happen before the value is dropped, which happens once.

#![expect(unsafe_code, reason = "looks at memory that the protocol guards")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};

use crate::engine::counted::Counted;
use crate::*;

/// A value whose accesses loom checks: the drop is a write, which must not race with the reads of other owners.
struct Value {
    cell: UnsafeCell<u32>,
    drops: Arc<AtomicUsize>,
}

// SAFETY: all accesses but the last are reads, and loom checks that the last one does not race with them.
unsafe impl Sync for Value {}

impl Value {
    fn read(&self) -> u32 {
        // SAFETY: owners only read; loom fails the model if the write of the drop is concurrent.
        self.cell.with(|value| unsafe { *value })
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: `&mut self`; loom fails the model if a read is concurrent.
        self.cell.with_mut(|value| unsafe { *value = 0 });
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

fn value() -> (Counted<Value>, Arc<AtomicUsize>) {
    let drops = Arc::new(AtomicUsize::new(0));
    (Counted::new(Value { cell: UnsafeCell::new(7), drops: drops.clone() }), drops)
}

#[test]
fn the_last_of_three_owners_drops_the_value_after_all_reads() {
    model(|| {
        let (first, drops) = value();
        let others = [first.clone(), first.clone()].map(|owner| {
            thread::spawn(move || {
                assert_eq!(owner.read(), 7);
                drop(owner);
            })
        });
        assert_eq!(first.read(), 7);
        drop(first);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_clone_made_while_another_owner_is_dropped_keeps_the_value() {
    model(|| {
        let (first, drops) = value();
        let other = first.clone();
        assert_eq!(other.addr(), first.addr());
        let cloning = thread::spawn(move || {
            let clone = other.clone();
            drop(other);
            assert_eq!(clone.read(), 7);
            clone
        });
        drop(first);
        let clone = cloning.join().unwrap();
        assert_eq!((clone.read(), drops.load(Ordering::Relaxed)), (7, 0));
        drop(clone);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    });
}
