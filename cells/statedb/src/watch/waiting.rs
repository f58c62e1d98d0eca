//! Waiters of a watch: tasks, and listeners `L`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;

use super::sync::{AtomicBool, Mutex, Ordering};
use crate::panics::Panics;

/// A flag that closes once, with the tasks and listeners to notify then.
///
/// The flag is set before the list is locked and emptied. Each waiter reads the flag again under the lock before it is
/// added to the list, so none is added after the list was emptied.
pub(crate) struct Waiting<L> {
    closed: AtomicBool,
    list: Mutex<List<L>>,
}

struct List<L> {
    /// Mostly one. A task keeps its place until it stops waiting, so that registration and cancellation are O(1): tasks
    /// that select over a watch of a whole table do both at each turn.
    tasks: SmallVec<[Option<Waker>; 1]>,
    /// Places without a task.
    free: Vec<usize>,
    listeners: Vec<L>,
}

impl<L> List<L> {
    /// Puts a task into a free place and returns the place.
    fn register(&mut self, waker: Waker) -> usize {
        match self.free.pop() {
            Some(place) => {
                self.tasks[place] = Some(waker);
                place
            }
            None => {
                self.tasks.push(Some(waker));
                self.tasks.len() - 1
            }
        }
    }

    /// Frees a place and returns its waker; none if the list was emptied meanwhile.
    fn cancel(&mut self, place: usize) -> Option<Waker> {
        let waker = self.tasks.get_mut(place)?.take()?;
        self.free.push(place);
        Some(waker)
    }
}

impl<L> Default for List<L> {
    fn default() -> Self {
        List { tasks: SmallVec::new(), free: Vec::new(), listeners: Vec::new() }
    }
}

impl<L> Default for Waiting<L> {
    fn default() -> Self {
        Waiting { closed: AtomicBool::new(false), list: Mutex::new(List::default()) }
    }
}

impl<L> Waiting<L> {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Wakes the tasks, then passes the listeners to `notify`, also those after one that panics; does nothing if it has
    /// closed before.
    pub(crate) fn close(&self, notify: impl FnMut(L)) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        // Waiters that arrive later see the flag and are not added.
        let List { tasks, listeners, .. } = std::mem::take(&mut *self.list.lock());
        let mut panics = Panics::default();
        panics.each(tasks.into_iter().flatten(), Waker::wake);
        panics.each(listeners, notify);
        panics.resume();
    }

    /// Calls `add` with the list of listeners, unless it has closed; returns whether `add` was called.
    pub(crate) fn listen(&self, add: impl FnOnce(&mut Vec<L>)) -> bool {
        let mut list = self.list.lock();
        let open = !self.is_closed();
        if open {
            add(&mut list.listeners);
        }
        open
    }

    /// Waits until it closes.
    pub(crate) fn wait(&self) -> Wait<'_, L> {
        Wait { on: self, place: None }
    }
}

/// A task that waits.
pub(crate) struct Wait<'w, L> {
    on: &'w Waiting<L>,
    /// Its place on the list, once it has one.
    place: Option<usize>,
}

impl<L> Future for Wait<'_, L> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.on.is_closed() {
            return Poll::Ready(());
        }
        // Wakers are foreign code: cloned before the lock is taken, dropped after it is released.
        let waker = context.waker().clone();
        let mut list = self.on.list.lock();
        if self.on.is_closed() {
            return Poll::Ready(());
        }
        let before = match self.place {
            Some(place) => list.tasks[place].replace(waker),
            None => {
                self.place = Some(list.register(waker));
                None
            }
        };
        drop(list);
        drop(before);
        Poll::Pending
    }
}

impl<L> Drop for Wait<'_, L> {
    fn drop(&mut self) {
        let Some(place) = self.place.filter(|_| !self.on.is_closed()) else { return };
        let mut list = self.on.list.lock();
        let waker = list.cancel(place);
        drop(list);
        drop(waker);
    }
}
