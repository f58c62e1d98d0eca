//! Cilium's limit: a rate and a number of parallel requests, adjusted so that requests take as long as estimated.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use token_bucket::{Bucket, Reservation};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use super::TurnedAway;
use super::parameters::Parameters;

/// Permits of the semaphore. A request takes `WHOLE / parallel` of them, with the number of parallel requests at its
/// arrival, so that this number can change while requests are in flight.
const WHOLE: usize = 10_000_000;

/// The metrics after a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Values {
    pub(crate) in_flight: u64,
    pub(crate) parallel: u64,
    pub(crate) rate: f64,
    pub(crate) burst: f64,
    pub(crate) adjustment_factor: f64,
    pub(crate) mean_processing: f64,
    pub(crate) estimated_processing: f64,
    pub(crate) mean_wait: f64,
    pub(crate) min_wait: f64,
    pub(crate) max_wait: f64,
}

pub(crate) struct Limiter {
    parameters: Parameters,
    slots: Arc<Semaphore>,
    state: Mutex<State>,
}

/// State that requests change; the caller passes the time.
struct State {
    bucket: Option<Bucket>,
    parallel: u64,
    adjustment_factor: f64,
    scheduled: u64,
    in_flight: u64,
    processing: Mean,
    waits: Mean,
}

impl Limiter {
    pub(crate) fn new(parameters: Parameters, now: Instant) -> Self {
        let limited = parameters.rate_limit > 0.0;
        let state = State {
            bucket: limited
                .then(|| Bucket::new(parameters.rate_limit, parameters.rate_burst, now.into_std())),
            parallel: parameters.parallel_requests,
            adjustment_factor: 0.0,
            scheduled: 0,
            in_flight: 0,
            processing: Mean::over(parameters.mean_over),
            waits: Mean::over(parameters.mean_over),
        };
        Self { parameters, slots: Arc::new(Semaphore::new(WHOLE)), state: Mutex::new(state) }
    }

    /// Waits for a token of the rate, then for a slot. Returns no slot for the initial requests, which are not limited.
    pub(crate) async fn admit(&self) -> Result<Option<OwnedSemaphorePermit>, TurnedAway> {
        let now = Instant::now();
        let max = self.parameters.max_wait_duration;
        let Some((reservation, parallel)) = self.schedule(now) else {
            self.state.lock().in_flight += 1;
            return Ok(None);
        };
        let mut cancel = CancelOnDrop { limiter: self, reservation };
        let mut wait = match reservation {
            Reserved::Unlimited => Duration::ZERO,
            Reserved::At(reservation) => reservation.at - now.into_std(),
            Reserved::Never => return Err(TurnedAway::RateLimit { wait: Duration::MAX, max }),
        };
        wait = wait.max(self.parameters.min_wait_duration);
        if !max.is_zero() && wait > max {
            return Err(TurnedAway::RateLimit { wait, max });
        }
        if !wait.is_zero() {
            sleep(wait).await;
        }
        let slot = match parallel {
            0 => None,
            parallel => Some(self.slot(parallel, wait).await?),
        };
        cancel.reservation = Reserved::Unlimited;
        self.state.lock().in_flight += 1;
        Ok(slot)
    }

    /// Counts a request and reserves a token for it; `None` for the initial ones, which are not limited.
    fn schedule(&self, now: Instant) -> Option<(Reserved, u64)> {
        let mut state = self.state.lock();
        state.scheduled += 1;
        if state.scheduled <= self.parameters.skip_initial {
            return None;
        }
        let parallel = state.parallel;
        let reserved = match &mut state.bucket {
            None => Reserved::Unlimited,
            Some(bucket) => bucket.reserve(now.into_std()).map_or(Reserved::Never, Reserved::At),
        };
        Some((reserved, parallel))
    }

    async fn slot(&self, parallel: u64, waited: Duration) -> Result<OwnedSemaphorePermit, TurnedAway> {
        let share = (WHOLE / parallel as usize).max(1) as u32;
        let acquire = self.slots.clone().acquire_many_owned(share);
        let max = self.parameters.max_wait_duration;
        let turned_away = || TurnedAway::Parallel { parallel: parallel as usize };
        let acquired = match max.is_zero() {
            true => acquire.await,
            false => timeout(max.saturating_sub(waited), acquire).await.map_err(|_| turned_away())?,
        };
        acquired.map_err(|_| turned_away())
    }

    /// Records a served request and adjusts the limit.
    pub(crate) fn finished(&self, took: Duration, waited: Duration) -> Values {
        let p = &self.parameters;
        if p.log {
            tracing::info!(processingDuration = ?took, waitDurationTotal = ?waited, "API call has been processed");
        }
        let mut state = self.state.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
        state.processing.add(took);
        state.waits.add(waited);
        if p.auto_adjust && !p.estimated_processing_duration.is_zero() {
            state.adjust(p, Instant::now());
        }
        Values {
            in_flight: state.in_flight,
            parallel: state.parallel,
            rate: state.bucket.as_ref().map_or(0.0, Bucket::rate),
            burst: state.bucket.as_ref().map_or(0.0, Bucket::burst),
            adjustment_factor: state.adjustment_factor,
            mean_processing: state.processing.mean(),
            estimated_processing: p.estimated_processing_duration.as_secs_f64(),
            mean_wait: state.waits.mean(),
            min_wait: p.min_wait_duration.as_secs_f64(),
            max_wait: p.max_wait_duration.as_secs_f64(),
        }
    }
}

impl State {
    /// Adjusts the limit: the rate follows the ratio of estimated to real duration at once, burst and parallel requests
    /// with a delay.
    fn adjust(&mut self, p: &Parameters, now: Instant) {
        let most = p.max_adjustment_factor;
        let ratio = p.estimated_processing_duration.as_secs_f64() / self.processing.mean();
        self.adjustment_factor = ratio.clamp(1.0 / most, most);
        let factor = self.adjustment_factor;
        let bounded = |value: f64, initial: f64| value.clamp(initial / most, initial * most);
        let delayed = |current: f64| current + (current * factor - current) * p.delayed_adjustment_factor;

        let parallel = p.parallel_requests as f64;
        let mut adjusted = delayed(parallel).max(p.min_parallel_requests as f64);
        if p.max_parallel_requests > 0 {
            adjusted = adjusted.min(p.max_parallel_requests as f64);
        }
        self.parallel = bounded(adjusted, parallel) as u64;
        if let Some(bucket) = &mut self.bucket {
            let burst = p.rate_burst as f64;
            let adjusted = delayed(burst).max(p.min_parallel_requests as f64);
            let rate = bounded(p.rate_limit * factor, p.rate_limit);
            bucket.adjust(rate, bounded(adjusted, burst).round(), now.into_std());
        }
    }
}

#[derive(Clone, Copy)]
enum Reserved {
    Unlimited,
    At(Reservation),
    Never,
}

/// Returns the token of a request to the bucket if it is rejected or its client disconnects while it waits.
struct CancelOnDrop<'a> {
    limiter: &'a Limiter,
    reservation: Reserved,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Reserved::At(reservation) = self.reservation
            && let Some(bucket) = &mut self.limiter.state.lock().bucket
        {
            bucket.cancel(reservation, Instant::now().into_std());
        }
    }
}

/// The mean of the last durations, in seconds.
#[derive(Debug)]
pub(super) struct Mean {
    last: VecDeque<f64>,
    over: usize,
}

impl Mean {
    pub(super) fn over(count: u64) -> Self {
        Self { last: VecDeque::new(), over: count.clamp(1, 100_000) as usize }
    }

    pub(super) fn add(&mut self, duration: Duration) {
        if self.last.len() == self.over {
            self.last.pop_front();
        }
        self.last.push_back(duration.as_secs_f64());
    }

    pub(super) fn mean(&self) -> f64 {
        self.last.iter().sum::<f64>() / self.last.len().max(1) as f64
    }
}
