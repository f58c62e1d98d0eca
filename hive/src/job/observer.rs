//! Jobs that follow a stream.

use std::time::Duration;

use futures::{FutureExt, Stream, StreamExt};
use tokio::time::Instant;

use super::JobHandle;
use super::group::{Body, Env, JobCx, JobGroup, Spec};
use crate::event::JobKind;

/// The interval at which a healthy observer reports.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// A job that follows a stream, once it is [added](ObserverJob::add). See [`JobGroup::observer`].
#[must_use = "a job that is only described does not run: end with `.add()`"]
pub struct ObserverJob {
    spec: Spec,
    body: Body,
}

impl ObserverJob {
    #[track_caller]
    pub(crate) fn new<S, F, Fut>(group: &JobGroup, name: String, stream: S, f: F) -> Self
    where
        S: Stream + Send + 'static,
        S::Item: Send,
        F: FnMut(JobCx, S::Item) -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let body = move |env| life(env, stream, f).boxed();
        ObserverJob { spec: Spec::new(group, JobKind::Observer, &name), body: Box::new(body) }
    }

    /// Makes the first item that fails shut the hive down with its error. Without this setting, a failed item degrades
    /// health, and the job continues with the next one.
    pub fn shutdown_on_error(mut self) -> Self {
        self.spec.shutdown_on_error = true;
        self
    }

    /// Sets how long the work on one item may take before the job counts as stuck; if not set, the watchdog's default
    /// applies.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.spec.deadline = Some(deadline);
        self
    }

    /// Adds the job and returns a handle to it.
    pub fn add(self) -> JobHandle {
        self.spec.submit(self.body)
    }
}

async fn life<S, F, Fut>(env: Env, stream: S, mut f: F)
where
    S: Stream,
    F: FnMut(JobCx, S::Item) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let health = &env.cx.health;
    health.ok("Primed");
    let mut stream = std::pin::pin!(stream);
    let (mut items, mut well_since): (u64, Option<Instant>) = (0, None);
    // Whether the last report came from the job's function `f`, not from this loop.
    let mut has_reported = false;
    loop {
        let item = tokio::select! {
            () = env.cx.cancelled() => return health.stopped(format_args!("Stopped after {items} items")),
            item = stream.next() => item,
        };
        let Some(item) = item else {
            return env.ended(has_reported, format_args!("Stream ended after {items} items"));
        };
        items += 1;
        match env.work(|| f(env.cx.clone(), item)).await {
            Ok(()) if health.heard() => (has_reported, well_since) = (true, Some(Instant::now())),
            Ok(()) if well_since.is_none_or(|at| at.elapsed() >= REPORT_EVERY) => {
                health.ok(format_args!("{items} items"));
                (has_reported, well_since) = (false, Some(Instant::now()));
            }
            Ok(()) => {}
            Err(error) => {
                health.degraded(format_args!("Failed at item {items}"), &error);
                (has_reported, well_since) = (false, None);
                env.give_up(error);
            }
        }
    }
}
