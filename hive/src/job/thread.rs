//! Jobs on dedicated threads.

use std::cell::Cell;
use std::sync::Arc;

use futures::future::{AbortHandle, Abortable};
use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;

thread_local! {
    /// Whether the thread belongs to a job, so that code on it may block.
    static MAY_BLOCK: Cell<bool> = const { Cell::new(false) };
}

/// Whether the current thread belongs to a job.
pub(super) fn may_block() -> bool {
    MAY_BLOCK.get()
}

/// Polls the future on a dedicated thread until it has ended, or until this is dropped: then the thread drops it at its
/// next await point. Timers and sockets remain those of the runtime.
///
/// In a single-threaded runtime it is polled in place: the paused clock of a test advances while all tasks of the
/// runtime wait, and does not take other threads into account.
pub(super) async fn on_own_thread(name: Arc<str>, future: impl Future<Output = ()> + Send + 'static) {
    let runtime = Handle::current();
    if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
        return future.await;
    }
    let (abort, registration) = AbortHandle::new_pair();
    let _aborts = AbortOnDrop(abort);
    let (ended, end) = oneshot::channel::<()>();
    // Shared with the closure of the thread: if the thread cannot be started, the future is still here.
    let work = Arc::new(Mutex::new(Some(Abortable::new(Box::pin(future), registration))));
    let log = tracing::dispatcher::get_default(tracing::Dispatch::clone);
    let taken = work.clone();
    let run = move || {
        MAY_BLOCK.set(true);
        let work = taken.lock().take();
        if let Some(work) = work {
            tracing::dispatcher::with_default(&log, || {
                let _aborted = runtime.block_on(work);
            });
        }
        drop(ended);
    };
    match std::thread::Builder::new().name(short(&name)).spawn(run) {
        // The sender is dropped at the end of the thread, even after a panic.
        Ok(_detached) => drop(end.await),
        Err(error) => {
            tracing::warn!(job = %name, %error, "No thread for a job; it runs as a task");
            let work = work.lock().take();
            if let Some(work) = work {
                let _aborted = work.await;
            }
        }
    }
}

/// Returns the name without the kind of the job, truncated to the 15 bytes that the kernel stores.
fn short(name: &str) -> String {
    name.strip_prefix("job-").unwrap_or(name).chars().take(15).collect()
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
