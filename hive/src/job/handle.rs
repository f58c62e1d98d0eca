//! A job that has been added: its handle, and its task.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument;

use super::group::{Body, Env};
use crate::event::{Event, Events};
use crate::health::Health;
use crate::lifecycle::{TaskId, catch};

/// A job that has been added; dropping the handle changes nothing.
#[derive(Clone)]
pub struct JobHandle {
    token: CancellationToken,
    done: CancellationToken,
    task: Arc<Mutex<Option<AbortHandle>>>,
    grace: Duration,
}

impl JobHandle {
    /// Returns the handle of a job with this grace period.
    pub(super) fn new(grace: Duration) -> Self {
        let (token, done) = (CancellationToken::new(), CancellationToken::new());
        JobHandle { token, done, task: Arc::default(), grace }
    }

    /// Returns the token that cancels the job.
    pub(super) fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Marks the job as ended.
    pub(super) fn end(&self) {
        self.done.cancel();
    }

    /// Returns a guard that ends the job when it is dropped.
    pub(super) fn ends_when_dropped(&self) -> DropGuard {
        self.done.clone().drop_guard()
    }

    /// Cancels the job.
    pub fn cancel(&self) {
        self.token.cancel();
    }

    /// Whether the job has ended.
    pub fn is_finished(&self) -> bool {
        self.done.is_cancelled()
    }

    /// Waits until the job has ended, or will never run because its hive has failed to start or is gone.
    pub async fn finished(&self) {
        self.done.cancelled().await;
    }

    /// Cancels the job and waits for it, at most for its grace period; then the job is dropped. A job that waits for
    /// the start of the hive will not run.
    pub async fn stop(&self) {
        self.cancel();
        if self.task.lock().is_none() {
            return;
        }
        if timeout_at(Instant::now() + self.grace, self.finished()).await.is_err()
            && let Some(task) = &*self.task.lock()
        {
            task.abort();
        }
    }
}

impl fmt::Debug for JobHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobHandle").field("finished", &self.is_finished()).finish_non_exhaustive()
    }
}

/// The task of a job.
pub(crate) struct Running {
    handle: JobHandle,
    task: JoinHandle<()>,
    name: Arc<str>,
    module: Arc<str>,
    events: Arc<Events>,
    health: Health,
}

impl Running {
    pub(super) fn spawn(env: Env, body: Body, handle: JobHandle, own_thread: bool) -> Self {
        let shared = env.group.shared.clone();
        let (name, module, health) = (env.name.clone(), env.group.module.clone(), env.cx.health.clone());
        let span = shared.events.job_span(&module, &env.bare);
        let done = handle.ends_when_dropped();
        let (events, job, owner) = (shared.events.clone(), name.clone(), module.clone());
        let track = env.cx.track.clone();
        if let Some(other) = shared.jobs.add(&track) {
            let (job, module, at, other) = (name.clone(), module.clone(), track.at, other.at);
            events.emit(Event::JobNameTaken { job, module, at, other });
        }
        let ends = track.ends();
        let life = async move {
            let (_done, _ends) = (done, ends);
            if env.cx.is_cancelled() {
                return;
            }
            events.emit(Event::JobStarted { job: job.clone(), module: owner.clone() });
            let begin = Instant::now();
            let (own, track) = (env.clone(), env.cx.track.clone());
            if let Err(panic) = catch(async { body(env).await }).await {
                own.broke(&panic);
            }
            track.pieces_ended().await;
            events.emit(Event::JobEnded { job, module: owner, duration: begin.elapsed() });
        };
        let id = TaskId { name: name.clone(), module: module.clone() };
        let life = track.polled(life).instrument(span);
        let task = match own_thread {
            true => shared.hooks.spawn(id, super::thread::on_own_thread(name.clone(), life)),
            false => shared.hooks.spawn(id, life),
        };
        *handle.task.lock() = Some(task.abort_handle());
        Running { handle, task, name, module, events: shared.events.clone(), health }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Cancels the job and waits for its end until its grace period or the earlier `deadline` is over, then drops it.
    pub(crate) async fn stop(mut self, deadline: Option<Instant>) {
        self.handle.cancel();
        let begin = Instant::now();
        let grace = begin + self.handle.grace;
        let until = deadline.map_or(grace, |deadline| deadline.min(grace));
        if timeout_at(until, &mut self.task).await.is_err() {
            self.task.abort();
            let grace = begin.elapsed();
            self.health.degraded("Dropped", format!("did not stop within {grace:.1?}"));
            let (job, module) = (self.name.clone(), self.module.clone());
            self.events.emit(Event::JobAborted { job, module, grace });
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.cancel();
        self.task.abort();
    }
}
