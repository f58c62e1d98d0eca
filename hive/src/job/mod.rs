//! Background jobs: tasks that belong to a cell, start and stop with it, and report its health.
//!
//! A job that a constructor adds starts with the hooks, after those of the constructor's dependencies, and is stopped
//! in reverse order. A job that is added later starts at once and is stopped before any stop hook runs, the newest
//! first. Stopping cancels [`JobCx`] and waits; a job that has not ended after its grace period is dropped at its next
//! await point. No task outlives its hive. A panic is an error of the job. Blocking code runs by [`blocking()`], whose
//! end the job awaits.
//!
//! # Stuck jobs
//! [`Jobs`] counts the steps of each job, and a [`Watchdog`] that samples the counters from a thread of its own names
//! those that are [`Stuck`]; it sets the deadline of jobs without one of their own. A job may wait for events
//! indefinitely. Handling them is a piece of work with a deadline: a run of a timer, an item of an observer, and in a
//! job with a loop of its own the code that [`JobCx::working`] encloses. Code that does not return to the runtime
//! counts as stuck in any job, as does a one-shot job that has failed for good.

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
