//! Background jobs: tasks that belong to a cell, start and stop with it, and report its health.
//!
//! A job that a constructor adds starts with the hooks, after those of what the constructor depends on, and is stopped
//! in reverse. A job that is added later starts at once and is stopped before any stop hook runs, the newest first.
//! Stopping cancels [`JobCx`] and waits; a job that has not ended after its grace is dropped at its next await point.
//! No task outlives its hive. A panic is an error of the job. What blocks goes through [`blocking()`], whose end the job
//! awaits.
//!
//! # Jobs that do not move
//! [`Jobs`] counts the steps of each job, and a [`Watchdog`] that looks at the counters from a thread of its own names
//! those that are [`Stuck`]: it owns the deadline of jobs that have none of their own. A job may wait for events as long
//! as it likes. What it does about them is a piece of work: a run of a timer and an item of an observer by themselves, in
//! a job that goes round by itself what [`JobCx::working`] encloses. Code that does not return to the runtime counts as
//! stuck in any job, as does a one-shot job that has failed for good.

mod backoff;
mod blocking;
mod group;
mod handle;
mod observer;
mod one_shot;
mod progress;
mod thread;
mod timer;

pub use backoff::Backoff;
pub use blocking::blocking;
pub use group::{JobCx, JobGroup};
pub use handle::JobHandle;
pub(crate) use handle::Running;
pub use observer::ObserverJob;
pub use one_shot::OneShotJob;
pub use progress::{Jobs, Reason, Schedule, Stuck, Watchdog, Working};
pub use timer::{TimerJob, Trigger};
