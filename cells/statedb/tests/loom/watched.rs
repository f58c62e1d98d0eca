//! Watches: asking and closing.

use std::task::{Context, Wake, Waker};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::watch::cell::LazyCell;
use crate::watch::waiting::Waiting;
use crate::*;

/// Readers who found the old state wait for a watch that closes, or are notified at once; the writer publishes first.
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

/// A task that finds it open is woken, whether it waits for the first time or with another waker; one that has stopped
/// waiting is off the list.
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
        let told = |at: usize| woken[at].0.load(Ordering::SeqCst);
        if polled[1].is_pending() {
            assert!(polled[0].is_pending() && told(1) && !told(0), "the last waker is the one to wake");
        }
        assert!(!told(2) || is_pending);
        assert!(wait.as_mut().poll(&mut Context::from_waker(&first)).is_ready());
        drop(wait);
        drop((first, second, gone));
        assert!(
            woken.into_iter().all(|woken| std::sync::Arc::into_inner(woken).is_some()),
            "a waker is kept"
        );
    });
}

/// Who listens is reported once, by the list or at once.
#[test]
fn a_listener_is_told_or_turned_away() {
    model(|| {
        let (waiting, told) = (Arc::new(Waiting::<u8>::default()), Arc::new(AtomicUsize::new(0)));
        let closers = [0; 2].map(|_| {
            let (waiting, told) = (waiting.clone(), told.clone());
            thread::spawn(move || {
                waiting.close(|_| {
                    told.fetch_add(1, Ordering::SeqCst);
                });
            })
        });
        let listens = waiting.listen(|listeners| listeners.push(1));
        closers.into_iter().for_each(|closer| closer.join().unwrap());
        assert_eq!(told.load(Ordering::SeqCst), usize::from(listens));
        assert!(!waiting.listen(|listeners| listeners.push(2)));
    });
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A state whose alignment leaves room for the mark of the cell.
#[repr(align(8))]
struct State(AtomicBool);

impl Default for State {
    fn default() -> Self {
        State(AtomicBool::new(false))
    }
}
