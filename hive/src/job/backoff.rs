//! Waiting times between attempts.

use std::time::Duration;

/// Waiting times that double from a minimum to a maximum, each spread by a random part.
#[derive(Clone, Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    jitter: f64,
    retries: Option<u32>,
    attempt: u32,
}

impl Backoff {
    /// Doubles from `min` to `max`, spread by 10 %, for ever.
    pub fn exponential(min: Duration, max: Duration) -> Self {
        Backoff { min, max, jitter: 0.1, retries: None, attempt: 0 }
    }

    /// Always the same, spread by 10 %, for ever.
    pub fn constant(wait: Duration) -> Self {
        Backoff::exponential(wait, wait)
    }

    /// Gives up after this many retries, which makes one attempt more.
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = Some(retries);
        self
    }

    /// How far a waiting time may be off, as a fraction of it.
    pub fn jitter(mut self, fraction: f64) -> Self {
        self.jitter = fraction.clamp(0.0, 1.0);
        self
    }

    /// How long to wait before the next attempt; `None` when it is time to give up.
    pub fn next_wait(&mut self) -> Option<Duration> {
        if self.retries.is_some_and(|retries| self.attempt >= retries) {
            return None;
        }
        let doubled = self.min.checked_mul(1 << self.attempt.min(30)).unwrap_or(self.max);
        self.attempt += 1;
        Some(spread(doubled.min(self.max), self.jitter))
    }

    /// How many retries there have been since the last success.
    pub fn attempts(&self) -> u32 {
        self.attempt
    }

    /// Begins again from the minimum; to be called after a success.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }
}

/// A duration off by at most `fraction` in either direction.
pub(crate) fn spread(wait: Duration, fraction: f64) -> Duration {
    if fraction <= 0.0 || wait.is_zero() {
        return wait;
    }
    wait.mul_f64(1.0 + fraction * (2.0 * rand::random::<f64>() - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_maximum_and_gives_up() {
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
        let second = Duration::from_secs(1);
        for _ in 0..1000 {
            let wait = spread(second, 0.1).as_secs_f64();
            assert!((0.9..=1.1).contains(&wait), "{wait}");
        }
    }
}
