//! Jobs that run once, or until they succeed.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::{Instant, sleep};

use super::Backoff;
use super::JobHandle;
use super::group::{Body, Env, JobCx, JobGroup, Run, Spec};
use super::progress::Schedule;
use crate::event::JobKind;

/// A job that runs once, once it is [added](OneShotJob::add). See [`JobGroup::one_shot`].
#[must_use = "a job that is only described does not run: end with `.add()`"]
pub struct OneShotJob {
    spec: Spec,
    body: Body,
}

impl OneShotJob {
    #[track_caller]
    pub(crate) fn once<F, Fut>(group: &JobGroup, name: String, f: F) -> Self
    where
        F: FnOnce(JobCx) -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let run: Once = Box::new(|cx| f(cx).boxed());
        let body = |env| run_once(env, run).boxed();
        OneShotJob { spec: Spec::new(group, JobKind::OneShot, &name), body: Box::new(body) }
    }

    #[track_caller]
    pub(crate) fn retried<F, Fut>(group: &JobGroup, name: String, backoff: Backoff, mut f: F) -> Self
    where
        F: FnMut(JobCx) -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let run: Run = Box::new(move |cx| f(cx).boxed());
        let body = |env| run_until_success(env, backoff, run).boxed();
        OneShotJob { spec: Spec::new(group, JobKind::OneShot, &name), body: Box::new(body) }
    }

    /// Shuts the hive down with the error when the job fails for good.
    pub fn shutdown_on_error(mut self) -> Self {
        self.spec.shutdown_on_error = true;
        self
    }

    /// Sets the grace period of the job after cancellation; 5 s if not set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.spec.grace = grace;
        self
    }

    /// Sets the maximum duration of a piece of its work ([`JobCx::working`]), and of code that does not return to the
    /// runtime, before the job counts as stuck; the watchdog's default if not set.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.spec.deadline = Some(deadline);
        self
    }

    /// Runs the job on a dedicated thread, where it may block: [`blocking`](super::blocking()) runs in place there. For
    /// jobs that mostly block and that other tasks wait for: a wakeup costs one thread switch, and blocking calls cost
    /// none.
    ///
    /// In a single-threaded runtime, as in tests, the job is an ordinary task.
    pub fn on_own_thread(mut self) -> Self {
        self.spec.own_thread = true;
        self
    }

    /// Adds the job and returns a handle to it.
    pub fn add(self) -> JobHandle {
        self.spec.submit(self.body)
    }
}

/// The function of a job, boxed: what surrounds it is compiled once, not once per job.
type Once = Box<dyn FnOnce(JobCx) -> BoxFuture<'static, anyhow::Result<()>> + Send>;

async fn run_once(env: Env, run: Once) {
    env.cx.health.ok("Running");
    let begin = Instant::now();
    match env.attempt(|| run(env.cx.clone())).await {
        Ok(()) => finished(&env, begin),
        Err(error) => {
            env.cx.health.degraded(format_args!("Failed (duration {:.1?})", begin.elapsed()), &error);
            env.cx.track.failed();
            env.give_up(error);
        }
    }
}

async fn run_until_success(env: Env, mut backoff: Backoff, mut run: Run) {
    env.cx.health.ok("Running");
    env.cx.track.scheduled(Schedule { interval: None, retries: true });
    loop {
        let begin = Instant::now();
        let Err(error) = env.attempt(|| run(env.cx.clone())).await else {
            return finished(&env, begin);
        };
        let duration = begin.elapsed();
        let Some(wait) = backoff.next_wait() else {
            env.cx.health.degraded(format_args!("Failed (duration {duration:.1?}, gave up)"), &error);
            env.cx.track.failed();
            return env.give_up(error);
        };
        let retry = backoff.attempts();
        let message = format!("Failed (duration {duration:.1?}, retry {retry} in {wait:.1?})");
        env.cx.health.degraded(message, &error);
        tokio::select! {
            () = env.cx.cancelled() => return env.cx.health.stopped("Cancelled"),
            () = sleep(wait) => {}
        }
    }
}

fn finished(env: &Env, begin: Instant) {
    env.ended(env.cx.health.heard(), format_args!("Finished ({:.1?})", begin.elapsed()));
}
