//! Delays between attempts.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Delays that double from a minimum to a maximum, each with jitter.
#[derive(Clone, Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    jitter: f64,
    retries: Option<u32>,
    attempt: u32,
}

impl Backoff {
    /// Doubles from `min` to `max` with a jitter of 10 %, without a limit of retries.
    pub fn exponential(min: Duration, max: Duration) -> Self {
        Backoff { min, max, jitter: 0.1, retries: None, attempt: 0 }
    }

    /// Always the same delay with a jitter of 10 %, without a limit of retries.
    pub fn constant(wait: Duration) -> Self {
        Backoff::exponential(wait, wait)
    }

    /// Limits the number of retries; there is one attempt more than retries.
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = Some(retries);
        self
    }

    /// Sets the jitter, as a fraction of the delay.
    pub fn jitter(mut self, fraction: f64) -> Self {
        self.jitter = fraction.clamp(0.0, 1.0);
        self
    }

    /// Returns the delay before the next attempt; `None` when no retry is left.
    pub fn next_wait(&mut self) -> Option<Duration> {
        if self.retries.is_some_and(|retries| self.attempt >= retries) {
            return None;
        }
        let doubled = self.min.checked_mul(1 << self.attempt.min(30)).unwrap_or(self.max);
        self.attempt += 1;
        Some(spread(doubled.min(self.max), self.jitter))
    }

    /// Returns the number of retries since the last success.
    pub fn attempts(&self) -> u32 {
        self.attempt
    }

    /// Restarts from the minimum; to be called after a success.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }
}

/// Returns a duration changed by at most `fraction` in either direction.
pub(crate) fn spread(wait: Duration, fraction: f64) -> Duration {
    if fraction <= 0.0 || wait.is_zero() {
        return wait;
    }
    let seconds = wait.as_secs_f64() * (1.0 + fraction * (2.0 * random() - 1.0));
    Duration::try_from_secs_f64(seconds).unwrap_or(wait)
}

/// Returns a different number from 0 to 1 at each call: as random as the keys of a new hash map, which suffices to
/// spread clients that wait.
fn random() -> f64 {
    RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_maximum_and_ends_after_the_last_retry() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::exponential(ms(100), ms(300)).jitter(0.0).retries(4);
        let waits: Vec<_> = std::iter::from_fn(|| backoff.next_wait()).collect();
        assert_eq!(waits, [ms(100), ms(200), ms(300), ms(300)]);
        backoff.reset();
        assert_eq!(backoff.next_wait(), Some(ms(100)));
    }

    #[test]
    fn never_overflows() {
        let mut backoff =
            Backoff::exponential(Duration::from_secs(u64::MAX / 2), Duration::from_secs(7)).jitter(0.0);
        for _ in 0..100 {
            assert_eq!(backoff.next_wait(), Some(Duration::from_secs(7)));
        }
    }

    #[test]
    fn jitter_stays_in_its_bounds() {
        let waits: Vec<f64> = (0..1000).map(|_| spread(Duration::from_secs(1), 0.1).as_secs_f64()).collect();
        assert!(waits.iter().all(|wait| (0.9..=1.1).contains(wait)), "{waits:?}");
        // The delays are spread evenly: each tenth of the range occurs.
        for tenth in 0..10 {
            let from = 0.9 + 0.02 * f64::from(tenth);
            let there = waits.iter().filter(|wait| (from..from + 0.02).contains(*wait)).count();
            assert!((30..300).contains(&there), "{there} of 1000 in the tenth {tenth}");
        }
        assert_eq!(spread(Duration::MAX, 0.0), Duration::MAX);
        assert!(spread(Duration::MAX, 0.5) > Duration::from_secs(u64::MAX / 3));
    }
}
