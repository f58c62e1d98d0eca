//! Jobs that run at intervals, or when triggered.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::JobHandle;
use super::backoff::spread;
use super::group::{Env, JobCx, JobGroup, Run, Spec};
use super::progress::Schedule;
use crate::event::JobKind;

/// A handle that makes a timer job run soon. One run serves all triggers before it.
#[derive(Clone, Default)]
pub struct Trigger {
    notify: Arc<Notify>,
    debounce: Duration,
}

impl Trigger {
    /// Returns a trigger for one timer.
    pub fn new() -> Self {
        Trigger::default()
    }

    /// Sets the minimum time between runs: an earlier trigger is delayed until it has passed, never lost.
    pub fn with_debounce(mut self, debounce: Duration) -> Self {
        self.debounce = debounce;
        self
    }

    /// Requests a run.
    pub fn trigger(&self) {
        self.notify.notify_one();
    }
}

/// A job that runs at intervals, once it is [added](TimerJob::add). See [`JobGroup::timer`].
#[must_use = "a job that is only described does not run: end with `.add()`"]
pub struct TimerJob {
    spec: Spec,
    timer: Timer,
}

struct Timer {
    run: Run,
    interval: Duration,
    immediate: bool,
    jitter: f64,
    trigger: Option<Trigger>,
}

impl TimerJob {
    #[track_caller]
    pub(crate) fn new<F, Fut>(group: &JobGroup, name: String, interval: Duration, mut f: F) -> Self
    where
        F: FnMut(JobCx) -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let run: Run = Box::new(move |cx| Box::pin(f(cx)));
        let timer = Timer { run, interval, immediate: false, jitter: 0.0, trigger: None };
        TimerJob { spec: Spec::new(group, JobKind::Timer, &name), timer }
    }

    /// Makes the first run immediate, instead of after one interval.
    pub fn immediate(self) -> Self {
        self.change(|_, timer| timer.immediate = true)
    }

    /// Delays each run by a random part of the interval, at most this fraction of it.
    pub fn jitter(self, fraction: f64) -> Self {
        self.change(|_, timer| timer.jitter = fraction.clamp(0.0, 1.0))
    }

    /// Also runs the job when triggered.
    pub fn trigger(self, trigger: &Trigger) -> Self {
        self.change(|_, timer| timer.trigger = Some(trigger.clone()))
    }

    /// Shuts the hive down with the error when a run fails; otherwise health is degraded until the next run.
    pub fn shutdown_on_error(self) -> Self {
        self.change(|spec, _| spec.shutdown_on_error = true)
    }

    /// Sets the grace period of a run after cancellation; 5 s if not set.
    pub fn grace(self, grace: Duration) -> Self {
        self.change(|spec, _| spec.grace = grace)
    }

    /// Sets the maximum duration and delay of a run before the job counts as stuck; the watchdog's default if not set.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.change(|spec, _| spec.deadline = Some(deadline))
    }

    /// Adds the job and returns a handle to it.
    pub fn add(self) -> JobHandle {
        let TimerJob { spec, timer } = self;
        spec.submit(Box::new(move |env| timer.life(env).boxed()))
    }

    fn change(mut self, change: impl FnOnce(&mut Spec, &mut Timer)) -> Self {
        change(&mut self.spec, &mut self.timer);
        self
    }
}

impl Timer {
    async fn life(mut self, env: Env) {
        env.cx.health.ok("Primed");
        let interval = (!self.interval.is_zero()).then_some(self.interval);
        env.cx.track.scheduled(Schedule { interval, retries: true });
        if !self.interval.is_zero() {
            env.cx.track.every(self.interval.mul_f64(1.0 + self.jitter));
        }
        let begin = Instant::now();
        let mut tick = if self.immediate { begin } else { begin + self.interval };
        let mut last_run: Option<Instant> = None;
        loop {
            let at = tick + self.delay();
            let ticks = !self.interval.is_zero() || (self.immediate && last_run.is_none());
            tokio::select! {
                () = env.cx.cancelled() => break,
                () = sleep_until(at), if ticks => {}
                () = triggered(self.trigger.as_ref(), last_run) => {}
            }
            if env.cx.is_cancelled() {
                break;
            }
            if let Some(trigger) = &self.trigger {
                // The run that begins serves all triggers before it, so a pending notification is consumed.
                let _served = trigger.notify.notified().now_or_never();
            }
            let start = Instant::now();
            let result = env.work(|| (self.run)(env.cx.clone())).await;
            let end = Instant::now();
            last_run = Some(end);
            match result {
                Ok(()) if env.cx.health.heard() => {}
                Ok(()) => env.cx.health.ok(format_args!("OK ({:.1?})", end - start)),
                Err(error) => {
                    env.cx.health.degraded(format_args!("Failed (duration {:.1?})", end - start), &error);
                    env.give_up(error);
                }
            }
            tick = next_tick(tick, end, self.interval);
        }
        env.cx.health.stopped("Stopped");
    }

    fn delay(&self) -> Duration {
        // Half the range, shifted by half: never earlier than the tick.
        let half = self.interval.mul_f64(self.jitter / 2.0);
        spread(half, 1.0)
    }
}

/// Returns the first tick after `now`.
fn next_tick(tick: Instant, now: Instant, interval: Duration) -> Instant {
    if tick > now || interval.is_zero() {
        return tick;
    }
    let missed = (now - tick).as_nanos() / interval.as_nanos();
    let ahead = interval.as_nanos().saturating_mul(missed + 1);
    tick + Duration::from_nanos(u64::try_from(ahead).unwrap_or(u64::MAX))
}

async fn triggered(trigger: Option<&Trigger>, last_run: Option<Instant>) {
    let Some(trigger) = trigger else { return futures::future::pending().await };
    trigger.notify.notified().await;
    if let Some(last) = last_run {
        sleep_until(last + trigger.debounce).await;
    }
}
