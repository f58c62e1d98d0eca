//! Those who wait for a watch: tasks, and listeners `L`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;

use super::sync::{AtomicBool, Mutex, Ordering};
use crate::panics::Panics;

/// What closes once, and who is told then.
///
/// It closes before the list is locked and emptied; who comes to the list looks, with the lock, whether it has closed.
pub(crate) struct Waiting<L> {
    closed: AtomicBool,
    list: Mutex<List<L>>,
}

struct List<L> {
    /// Mostly one, by numbers.
    tasks: SmallVec<[(u64, Waker); 1]>,
    next: u64,
    listeners: Vec<L>,
}

impl<L> Default for List<L> {
    fn default() -> Self {
        List { tasks: SmallVec::new(), next: 0, listeners: Vec::new() }
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

    /// Wakes the tasks, then gives the listeners to `tell`, also those after one that panics; does nothing if it has
    /// closed before.
    pub(crate) fn close(&self, tell: impl FnMut(L)) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        // Whoever comes later finds it closed.
        let List { tasks, listeners, .. } = std::mem::take(&mut *self.list.lock());
        let mut panics = Panics::default();
        panics.each(tasks, |(_, task)| task.wake());
        panics.each(listeners, tell);
        panics.resume();
    }

    /// Lets `add` put a listener on the list, unless it has closed; returns whether it was asked.
    pub(crate) fn listen(&self, add: impl FnOnce(&mut Vec<L>)) -> bool {
        let mut list = self.list.lock();
        let open = !self.is_closed();
        if open {
            add(&mut list.listeners);
        }
        open
    }

    /// Ends when it closes.
    pub(crate) fn wait(&self) -> Wait<'_, L> {
        Wait { on: self, task: None }
    }
}

/// A task that waits.
pub(crate) struct Wait<'w, L> {
    on: &'w Waiting<L>,
    /// Its number, once it is on the list.
    task: Option<u64>,
}

impl<L> Future for Wait<'_, L> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.on.is_closed() {
            return Poll::Ready(());
        }
        // Wakers are others' code: copied before the lock is taken, dropped after.
        let mut waker = context.waker().clone();
        let mut list = self.on.list.lock();
        if self.on.is_closed() {
            return Poll::Ready(());
        }
        match list.tasks.iter_mut().find(|(task, _)| Some(*task) == self.task) {
            Some((_, before)) => std::mem::swap(before, &mut waker),
            None => {
                self.task = Some(list.next);
                let task = (list.next, waker);
                list.next += 1;
                list.tasks.push(task);
            }
        }
        Poll::Pending
    }
}

impl<L> Drop for Wait<'_, L> {
    fn drop(&mut self) {
        let Some(own) = self.task.filter(|_| !self.on.is_closed()) else { return };
        let mut list = self.on.list.lock();
        let at = list.tasks.iter().position(|(task, _)| *task == own);
        let task = at.map(|at| list.tasks.swap_remove(at));
        drop(list);
        drop(task);
    }
}
