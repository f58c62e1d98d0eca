//! Watches: asking and closing.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::watch::cell::LazyCell;
use crate::*;

/// Readers who found the old state wait for a watch that closes, or are told at once; the writer publishes first.
#[test]
fn no_wake_up_is_lost() {
    model(|| {
        let (current, cell) = (Arc::new(AtomicUsize::new(1)), Arc::new(LazyCell::<State>::default()));
        let readers = [0; 2].map(|_| {
            let (current, cell) = (current.clone(), cell.clone());
            thread::spawn(move || {
                let old = current.load(Ordering::SeqCst) == 1;
                old.then(|| cell.get(Arc::default)).flatten()
            })
        });
        current.store(2, Ordering::SeqCst);
        cell.close(|state| state.0.store(true, Ordering::SeqCst));
        for waiting in readers.map(|reader| reader.join().unwrap()).into_iter().flatten() {
            assert!(waiting.0.load(Ordering::SeqCst), "a lost wake-up");
        }
        assert!(cell.get(Arc::default).is_none_or(|state| state.0.load(Ordering::SeqCst)));
    });
}

/// A state whose alignment leaves room for the mark of the cell.
#[repr(align(8))]
struct State(AtomicBool);

impl Default for State {
    fn default() -> Self {
        State(AtomicBool::new(false))
    }
}
