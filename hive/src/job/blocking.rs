//! Work that blocks its thread: files, system calls, long computations.

use std::any::Any;
use std::sync::Arc;

use tracing::{Dispatch, Span, dispatcher};

use super::progress::Track;

tokio::task_local! {
    /// The job that runs this code.
    static JOB: Arc<Track>;
}

/// Runs blocking code - files, system calls, a long computation - on a thread for blocking work, and returns its
/// result.
///
/// In a job [with a thread of its own](super::OneShotJob::on_own_thread) the work runs in place.
///
/// In a job it counts as work of the job ([`JobCx::working`](super::JobCx::working)), and the job does not end before
/// it, even if no task waits for its result any more: resources that a job uses are in use until the job has stopped. A
/// panic propagates to the caller. Its log lines carry the caller's module.
///
/// ```
/// # use hive::prelude::*;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let mut hive = TestHive::new(module("host", "x", invoke(|jobs: JobGroup| {
///     jobs.one_shot("name", |cx: JobCx| async move {
///         let name = hive::blocking(|| std::fs::read_to_string("/proc/sys/kernel/hostname")).await?;
///         cx.health.ok(format!("this is {}", name.trim()));
///         Ok(())
///     }).add();
/// })));
/// # hive.start().await;
/// # hive.stop().await;
/// # });
/// ```
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    if super::thread::may_block() {
        return work();
    }
    let work: Work = Box::new(|| Box::new(work()));
    match on_blocking_thread(work).await.downcast() {
        Ok(result) => *result,
        Err(_) => unreachable!("the work returns a `T`"),
    }
}

/// Work with its type erased: the task around it is compiled once, not once per caller.
type Work = Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>;

async fn on_blocking_thread(work: Work) -> Box<dyn Any + Send> {
    let piece = JOB.try_with(Track::piece).ok();
    let (log, span) = (dispatcher::get_default(Dispatch::clone), Span::current());
    let work = move || {
        let _piece = piece;
        dispatcher::with_default(&log, || span.in_scope(work))
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and the caller with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Runs the future as code of a job.
pub(super) fn of_job<F: Future>(track: Arc<Track>, future: F) -> impl Future<Output = F::Output> {
    JOB.scope(track, future)
}
