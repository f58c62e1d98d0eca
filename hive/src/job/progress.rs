//! Progress of jobs: counters that jobs update, and a watchdog that compares samples of them.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::blocking::of_job;
use crate::health::Health;

/// The jobs of a hive that run, and those that have failed for good. Readers take it as `Arc<Jobs>`.
#[derive(Default)]
pub struct Jobs {
    tracks: Mutex<Vec<Arc<Track>>>,
}

/// When a job runs. A job that runs once and is not retried has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Schedule {
    /// The time between two runs of a timer; `None` for jobs that run until they succeed, and for timers that run only
    /// when triggered.
    pub interval: Option<Duration>,
    /// Whether a failed run is followed by another one.
    pub retries: bool,
}

/// The progress counters of a job. Updating them reads no clock.
pub(crate) struct Track {
    health: Health,
    /// Odd while the job's code runs on a thread.
    polls: AtomicU64,
    /// Grows with every begin and end of work.
    steps: AtomicU64,
    /// Pieces of work that have begun and not ended.
    active: AtomicU32,
    deadline: Deadline,
    schedule: OnceLock<Schedule>,
    /// The longest time between two runs of a timer.
    period: OnceLock<Duration>,
    backlog: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    state: AtomicU8,
    /// Cancelled when the job is to end; from then on it is not checked any more.
    token: CancellationToken,
    /// Work on other threads.
    pieces: TaskTracker,
    /// The last error, and the number of its consecutive occurrences.
    failures: Mutex<(String, u64)>,
    /// Where the job is added.
    pub(super) at: &'static Location<'static>,
}

/// A time limit in milliseconds; zero for the observer's default.
#[derive(Default)]
struct Deadline(AtomicU64);

impl Deadline {
    fn set(&self, limit: Duration) {
        self.0.store(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    }

    fn or(&self, default: Duration) -> Duration {
        match self.0.load(Ordering::Relaxed) {
            0 => default,
            millis => Duration::from_millis(millis),
        }
    }
}

const RUNNING: u8 = 0;
const ENDED: u8 = 1;
const FAILED: u8 = 2;

impl Jobs {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Registers a job that begins; a failure of an earlier job of the same name is forgotten. Returns another job of
    /// the same name that runs and is not cancelled, if there is one.
    pub(crate) fn add(&self, track: &Arc<Track>) -> Option<Arc<Track>> {
        let mut tracks = self.tracks.lock();
        tracks.retain(|old| match old.state.load(Ordering::Relaxed) {
            RUNNING => true,
            FAILED => !old.health.is_same(&track.health),
            _ => false,
        });
        let mut others = tracks.iter().filter(|old| old.health.is_same(&track.health));
        let other = others.find(|old| old.is_running() && !old.token.is_cancelled()).cloned();
        tracks.push(track.clone());
        other
    }

    /// Returns the progress of running jobs, by the paths of their health reporters.
    pub fn schedules(&self) -> BTreeMap<String, Schedule> {
        let running = self.running();
        running.iter().filter_map(|track| Some((track.health.path(), *track.schedule.get()?))).collect()
    }

    fn running(&self) -> Vec<Arc<Track>> {
        let mut tracks = self.tracks.lock();
        tracks.retain(|track| track.state.load(Ordering::Relaxed) != ENDED);
        tracks.clone()
    }
}

impl Track {
    pub(crate) fn new(
        health: &Health,
        token: &CancellationToken,
        at: &'static Location<'static>,
    ) -> Arc<Track> {
        Arc::new(Track {
            health: health.clone(),
            polls: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            active: AtomicU32::new(0),
            deadline: Deadline::default(),
            schedule: OnceLock::new(),
            period: OnceLock::new(),
            backlog: OnceLock::new(),
            state: AtomicU8::new(RUNNING),
            token: token.clone(),
            pieces: TaskTracker::new(),
            failures: Mutex::default(),
            at,
        })
    }

    fn is_running(&self) -> bool {
        self.state.load(Ordering::Relaxed) == RUNNING
    }

    /// Records a successful run.
    pub(crate) fn well(&self) {
        self.failures.lock().1 = 0;
    }

    /// Records a failed run; returns the number of consecutive failures with this error.
    pub(crate) fn again(&self, error: &str) -> u64 {
        let mut failures = self.failures.lock();
        if failures.0 != error {
            *failures = (error.to_owned(), 0);
        }
        failures.1 += 1;
        failures.1
    }

    /// Registers work on another thread; it ends when the result is dropped.
    pub(crate) fn piece(self: &Arc<Self>) -> (Working, TaskTrackerToken) {
        (self.begin(None), self.pieces.token())
    }

    /// Waits for the end of all work on other threads.
    pub(crate) async fn pieces_ended(&self) {
        self.pieces.close();
        self.pieces.wait().await;
    }

    pub(crate) fn begin(self: &Arc<Self>, deadline: Option<Duration>) -> Working {
        let before = self.deadline.0.load(Ordering::Relaxed);
        if let Some(deadline) = deadline {
            self.deadline.set(deadline);
        }
        self.active.fetch_add(1, Ordering::Relaxed);
        // Last, with release: a sample that sees this step sees the deadline and the active work as well.
        self.steps.fetch_add(1, Ordering::Release);
        Working { track: self.clone(), before }
    }

    pub(crate) fn deadline(&self, deadline: Duration) {
        self.deadline.set(deadline);
    }

    pub(crate) fn scheduled(&self, schedule: Schedule) {
        let _set_already = self.schedule.set(schedule);
    }

    pub(crate) fn every(&self, period: Duration) {
        let _set_already = self.period.set(period);
    }

    pub(crate) fn backlog(&self, has_work: Box<dyn Fn() -> bool + Send + Sync>) {
        let _set_already = self.backlog.set(has_work);
    }

    pub(crate) fn failed(&self) {
        self.state.store(FAILED, Ordering::Relaxed);
    }

    /// Returns a guard that ends the track when dropped, unless the job has failed.
    pub(crate) fn ends(self: &Arc<Self>) -> Ends {
        Ends(self.clone())
    }

    /// Polls the future and records when its code runs on a thread.
    pub(crate) async fn polled(self: Arc<Self>, future: impl Future<Output = ()>) {
        let mut future = std::pin::pin!(of_job(self.clone(), future));
        std::future::poll_fn(|cx| {
            let _thread = OnThread::enter(&self.polls);
            future.as_mut().poll(cx)
        })
        .await;
    }
}

struct OnThread<'a>(&'a AtomicU64);

impl<'a> OnThread<'a> {
    fn enter(polls: &'a AtomicU64) -> Self {
        polls.fetch_add(1, Ordering::Release);
        OnThread(polls)
    }
}

impl Drop for OnThread<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

pub(crate) struct Ends(Arc<Track>);

impl Drop for Ends {
    fn drop(&mut self) {
        let _failed = self.0.state.compare_exchange(RUNNING, ENDED, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// A piece of work that a job has begun; dropping it ends the work. See [`JobCx::working`](super::JobCx::working).
#[must_use = "dropping it ends the work"]
pub struct Working {
    track: Arc<Track>,
    before: u64,
}

impl Working {
    /// Reports a finished part of the work, which restarts the deadline.
    pub fn step(&self) {
        self.track.steps.fetch_add(1, Ordering::Release);
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.track.deadline.0.store(self.before, Ordering::Relaxed);
        self.track.active.fetch_sub(1, Ordering::Relaxed);
        self.track.steps.fetch_add(1, Ordering::Release);
    }
}

/// The reason why a job counts as stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Its code has not returned to the runtime: it blocks the thread, perhaps for a lock.
    Blocked,
    /// A piece of work that it began does not end.
    Unfinished,
    /// It has pending work and does not begin it.
    Backlog,
    /// Its interval has passed and it has not run.
    Overdue,
    /// It has failed and is not retried.
    Failed,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Blocked => "blocks its thread",
            Reason::Unfinished => "does not come to an end with what it began",
            Reason::Backlog => "has work and does not begin",
            Reason::Overdue => "has not run in its interval",
            Reason::Failed => "has failed and does not run any more",
        })
    }
}

/// A job that makes no progress.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stuck {
    /// The path of its health reporter.
    pub job: String,
    /// The reason.
    pub reason: Reason,
    /// For how long it has been observed in this state.
    pub since: Duration,
    /// The deadline.
    pub deadline: Duration,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Reason::Failed => write!(f, "{}", self.reason),
            reason => write!(f, "{reason}, deadline {:?}", self.deadline),
        }
    }
}

/// Finds the jobs that are stuck, from samples of their counters.
///
/// Time only counts while the watchdog itself runs: a gap between two samples longer than [`Watchdog::GAP`] - the
/// process was stopped, the machine slept, a debugger was attached, the system was overloaded - is not counted against
/// any job. Deadlines have the resolution of the samples: a job is named at the last sample before its deadline is
/// over, and at the earliest two samples before.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use hive::job::Watchdog;
/// use hive::prelude::*;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let stuck = module("m", "x", invoke(|jobs: JobGroup| {
///     jobs.one_shot("wait", |cx: JobCx| async move {
///         let _working = cx.working();
///         std::future::pending().await
///     }).add();
/// }));
/// let mut hive = TestHive::new(stuck);
/// hive.start().await;
/// tokio::task::yield_now().await;
/// let mut watchdog = Watchdog::new(hive.hive().jobs().clone(), Duration::from_secs(10));
/// let begin = Instant::now();
/// let samples = (0..=10).map(|second| watchdog.sample(begin + Duration::from_secs(second)));
/// let last = samples.last().unwrap();
/// assert_eq!(last[0].job, "m.job-wait");
/// hive.kill(); // a stop would wait for the job
/// # });
/// ```
pub struct Watchdog {
    jobs: Arc<Jobs>,
    deadline: Duration,
    last: Option<Instant>,
    /// By the address of the track, which the list keeps alive.
    seen: Vec<(Arc<Track>, Seen)>,
}

/// The state of a job as of the previous samples.
#[derive(Clone, Copy, Default)]
struct Seen {
    polls: u64,
    steps: u64,
    on_thread: Duration,
    still: Duration,
    behind: Duration,
}

impl Watchdog {
    /// The maximum time between two samples that counts.
    pub const GAP: Duration = Duration::from_secs(2);

    /// Returns a watchdog for these jobs; the deadline applies to those that have none of their own.
    pub fn new(jobs: Arc<Jobs>, deadline: Duration) -> Self {
        Watchdog { jobs, deadline, last: None, seen: Vec::new() }
    }

    /// Takes a sample at `now`, a time of a monotonic clock. To be called at regular intervals of about a second.
    pub fn sample(&mut self, now: Instant) -> Vec<Stuck> {
        let passed = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        let passed = if passed > Self::GAP { Duration::ZERO } else { passed };
        self.last = Some(now);
        let mut stuck = Vec::new();
        let running = self.jobs.running();
        self.seen.retain(|(track, _)| track.state.load(Ordering::Relaxed) != ENDED);
        for track in running {
            let at = self.seen.iter().position(|(seen, _)| Arc::ptr_eq(seen, &track));
            let (now, reason) = judge(&track, at.map(|at| self.seen[at].1), passed, self.deadline);
            match at {
                Some(at) => self.seen[at].1 = now,
                None => self.seen.push((track.clone(), now)),
            }
            if let Some((reason, since)) = reason {
                let (job, deadline) = (track.health.path(), track.deadline.or(self.deadline));
                stuck.push(Stuck { job, reason, since, deadline });
            }
        }
        stuck
    }
}

fn judge(
    track: &Track,
    before: Option<Seen>,
    passed: Duration,
    default: Duration,
) -> (Seen, Option<(Reason, Duration)>) {
    let (polls, steps) = (track.polls.load(Ordering::Acquire), track.steps.load(Ordering::Acquire));
    let active = track.active.load(Ordering::Relaxed) > 0;
    let moved = before.is_none_or(|seen| seen.steps != steps);
    let grow = |still: bool, time: fn(&Seen) -> Duration| {
        // A step right after the previous sample is possible, so only the time since then counts.
        if still { before.as_ref().map_or(Duration::ZERO, time) + passed } else { passed }
    };
    let on_thread = polls % 2 == 1;
    // A job at work has no backlog: the deadline of its work applies.
    let behind = !active && track.backlog.get().is_some_and(|has_work| has_work());
    let now = Seen {
        polls,
        steps,
        on_thread: grow(on_thread && before.is_some_and(|seen| seen.polls == polls), |seen| seen.on_thread),
        still: grow(!moved, |seen| seen.still),
        behind: if behind { grow(!moved, |seen| seen.behind) } else { Duration::ZERO },
    };
    let limit = track.deadline.or(default);
    // The limit would be exceeded before the next sample.
    let over = |time: Duration, limit: Duration| !passed.is_zero() && time.saturating_add(passed) > limit;
    let reason = if track.state.load(Ordering::Relaxed) == FAILED {
        Some((Reason::Failed, now.still))
    } else if track.token.is_cancelled() {
        None
    } else if on_thread && over(now.on_thread, limit) {
        Some((Reason::Blocked, now.on_thread))
    } else if active && over(now.still, limit) {
        Some((Reason::Unfinished, now.still))
    } else if behind && over(now.behind, limit) {
        Some((Reason::Backlog, now.behind))
    } else if let Some(period) = track.period.get()
        && !active
        && over(now.still, limit.saturating_add(*period))
    {
        Some((Reason::Overdue, now.still))
    } else {
        None
    };
    (now, reason)
}
