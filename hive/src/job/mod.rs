//! Background jobs: tasks that belong to a cell, start and stop with it, and report its health.
//!
//! A job that a constructor adds starts with the hooks, after those of what the constructor depends on, and is stopped
//! in reverse. A job that is added later starts at once and is stopped before any stop hook runs, the newest first.
//! Stopping cancels [`JobCx`] and waits; a job that has not ended after its grace is dropped at its next await point.
//! No task outlives its hive. A panic is an error of the job.

mod backoff;
mod group;
mod observer;
mod one_shot;
mod timer;

pub use backoff::Backoff;
pub(crate) use group::Running;
pub use group::{JobCx, JobGroup, JobHandle};
pub use observer::ObserverJob;
pub use one_shot::OneShotJob;
pub use timer::{TimerJob, Trigger};
