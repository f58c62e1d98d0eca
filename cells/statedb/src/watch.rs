//! One-shot notifications that something read from a snapshot has changed.

mod cell;
mod waiting;

/// The synchronization primitives of the watches; the models in `tests/loom` replace them by loom's.
mod sync {
    pub(super) use std::sync::Arc;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

    pub(super) use parking_lot::Mutex;
}

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use self::cell::LazyCell;
use self::waiting::Waiting;

/// A one-shot notification that the result of a query is out of date.
///
/// A watch closes after the new state is visible: a task that wakes up and takes a new snapshot always finds the
/// change. Spurious closes are possible, missed changes are not. A closed watch stays closed: query again to get the
/// next watch. A [`WatchSet`](crate::WatchSet) waits for many at once.
#[derive(Clone)]
pub struct Watch(Option<Arc<State>>);

/// A future that resolves when a watch closes.
pub(crate) type Changed = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

type State = Waiting<Weak<dyn Listener>>;

/// A receiver of the close of a watch, which happens once.
pub(crate) trait Listener: Send + Sync {
    fn closed(self: Arc<Self>);
}

fn close(state: &State) {
    state.close(|listener| listener.upgrade().into_iter().for_each(Listener::closed));
}

impl Watch {
    /// Returns a watch that is already closed.
    pub fn closed() -> Self {
        Watch(None)
    }

    pub(crate) fn close(&self) {
        self.0.iter().for_each(|state| close(state));
    }

    /// Notifies the listener when the watch closes, immediately if it is closed already. The watch keeps only a weak
    /// reference: a listener that was dropped is not notified.
    pub(crate) fn listen<L: Listener + 'static>(&self, listener: &Arc<L>) {
        let add = |listeners: &mut Vec<Weak<dyn Listener>>| {
            if listeners.len() == listeners.capacity() {
                // Dropped listeners are pruned before the list grows: its capacity stays below twice the number of live
                // ones, and the cost per added listener is amortised O(1).
                listeners.retain(|listener| listener.strong_count() > 0);
                let room = listeners.len().max(1);
                listeners.reserve_exact(room);
            }
            let listener: Weak<L> = Arc::downgrade(listener);
            listeners.push(listener);
        };
        if !self.0.as_ref().is_some_and(|state| state.listen(add)) {
            listener.clone().closed();
        }
    }

    /// Returns whether the watch has closed.
    pub fn is_closed(&self) -> bool {
        self.0.as_ref().is_none_or(|state| state.is_closed())
    }

    /// Waits for the change. Cancel safe; any number of tasks may wait on clones of one watch.
    pub async fn changed(&self) {
        if let Some(state) = &self.0 {
            state.wait().await;
        }
    }

    /// As [`changed`](Self::changed), as an owned future.
    pub(crate) fn into_changed(self) -> Changed {
        Box::pin(async move { self.changed().await })
    }

    /// Blocks this thread until the change or the timeout; returns whether the change came.
    pub fn blocking_wait(&self, timeout: Duration) -> bool {
        struct Unpark(std::thread::Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let deadline = Instant::now() + timeout;
        let mut changed = pin!(self.changed());
        while changed.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Pending {
            let now = Instant::now();
            if now >= deadline {
                return false;
            }
            std::thread::park_timeout(deadline - now);
        }
        true
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watch({})", if self.is_closed() { "closed" } else { "open" })
    }
}

/// The owner's end of a watch. The watch is created on the first request and closed at most once.
#[derive(Default)]
pub(crate) struct WatchCell(LazyCell<State>);

impl WatchCell {
    pub(crate) fn watch(&self) -> Watch {
        Watch(self.0.get(Arc::default))
    }

    pub(crate) fn close(&self) {
        self.0.close(close);
    }
}

impl Drop for WatchCell {
    /// Closes the watch: after an aborted insert or the end of the database no later change could close it.
    fn drop(&mut self) {
        if let Some(state) = self.0.take() {
            close(&state);
        }
    }
}
