//! Jobs on threads of their own.

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

/// Polls the future on a thread of its own until it has ended, or until this is dropped: then the thread drops it at its
/// next await point. Timers and sockets remain those of the runtime.
///
/// In a runtime of one thread it is polled in place: that runtime's clock, if it is a test's, advances while all of its
/// tasks wait, and does not see what another thread still does.
pub(super) async fn on_own_thread(name: Arc<str>, future: impl Future<Output = ()> + Send + 'static) {
    let runtime = Handle::current();
    if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
        return future.await;
    }
    let (abort, registration) = AbortHandle::new_pair();
    let _aborts = AbortOnDrop(abort);
    let (ended, end) = oneshot::channel::<()>();
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
        // The sender is dropped at the thread's end, also by a panic.
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

/// The name as far as the kernel keeps it, without the kind of the job.
fn short(name: &str) -> String {
    name.strip_prefix("job-").unwrap_or(name).chars().take(15).collect()
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
