//! Watches: concurrent requests and close.

use std::task::{Context, Wake, Waker};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::watch::cell::LazyCell;
use crate::watch::waiting::Waiting;
use crate::*;

/// Readers that found the old state get a watch that closes, or one that is closed already; the writer publishes first.
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

/// A task that finds the watch open is woken, by its latest waker; a cancelled wait is removed from the list.
#[test]
fn a_task_that_waits_is_woken() {
    model(|| {
        let waiting = Arc::new(Waiting::<()>::default());
        let closer = {
            let waiting = waiting.clone();
            thread::spawn(move || waiting.close(|()| {}))
        };
        let woken = [0; 3].map(|_| std::sync::Arc::new(Woken(AtomicBool::new(false))));
        let [first, second, gone] = woken.each_ref().map(|woken| Waker::from(woken.clone()));
        let mut wait = Box::pin(waiting.wait());
        let mut left = Box::pin(waiting.wait());
        let is_pending = left.as_mut().poll(&mut Context::from_waker(&gone)).is_pending();
        drop(left);
        let polled = [&first, &second].map(|waker| wait.as_mut().poll(&mut Context::from_waker(waker)));
        closer.join().unwrap();
        let was_woken = |at: usize| woken[at].0.load(Ordering::SeqCst);
        if polled[1].is_pending() {
            assert!(
                polled[0].is_pending() && was_woken(1) && !was_woken(0),
                "the last waker is the one to wake"
            );
        }
        assert!(!was_woken(2) || is_pending);
        assert!(wait.as_mut().poll(&mut Context::from_waker(&first)).is_ready());
        drop(wait);
        drop((first, second, gone));
        assert!(
            woken.into_iter().all(|woken| std::sync::Arc::into_inner(woken).is_some()),
            "a waker is kept"
        );
    });
}

/// A listener is notified exactly once if it was added, and not at all if it was refused.
#[test]
fn a_listener_is_notified_or_refused() {
    model(|| {
        let (waiting, notified) = (Arc::new(Waiting::<u8>::default()), Arc::new(AtomicUsize::new(0)));
        let closers = [0; 2].map(|_| {
            let (waiting, notified) = (waiting.clone(), notified.clone());
            thread::spawn(move || {
                waiting.close(|_| {
                    notified.fetch_add(1, Ordering::SeqCst);
                });
            })
        });
        let listens = waiting.listen(|listeners| listeners.push(1));
        closers.into_iter().for_each(|closer| closer.join().unwrap());
        assert_eq!(notified.load(Ordering::SeqCst), usize::from(listens));
        assert!(!waiting.listen(|listeners| listeners.push(2)));
    });
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A state, aligned so that its address cannot be the mark of the cell.
#[repr(align(8))]
struct State(AtomicBool);

impl Default for State {
    fn default() -> Self {
        State(AtomicBool::new(false))
    }
}
