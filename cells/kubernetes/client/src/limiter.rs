//! How many requests a second.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A bucket that fills with tokens; a request takes one, or waits for it.
#[derive(Debug)]
pub(crate) struct Limiter {
    /// Tokens a second; zero for no limit.
    rate: f64,
    /// Tokens at most.
    burst: f64,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    /// Negative while requests wait.
    tokens: f64,
    at: Instant,
}

impl Limiter {
    /// A full bucket.
    pub(crate) fn new(rate: f64, burst: u32) -> Limiter {
        let burst = f64::from(burst.max(1));
        Limiter { rate, burst, bucket: Mutex::new(Bucket { tokens: burst, at: Instant::now() }) }
    }

    /// Takes a token; gives how long that took.
    pub(crate) async fn acquire(&self) -> Duration {
        let wait = self.take(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        wait
    }

    fn take(&self, now: Instant) -> Duration {
        if self.rate <= 0.0 {
            return Duration::ZERO;
        }
        let mut bucket = self.bucket.lock();
        let grown = now.saturating_duration_since(bucket.at).as_secs_f64() * self.rate;
        bucket.tokens = (bucket.tokens + grown).min(self.burst) - 1.0;
        bucket.at = now;
        Duration::from_secs_f64((-bucket.tokens).max(0.0) / self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let limiter = Limiter::new(10.0, 3);
        let now = Instant::now();
        let waits: Vec<u128> = (0..6).map(|_| limiter.take(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200, 300]);
        let later = now + Duration::from_secs(60);
        let waits: Vec<u128> = (0..4).map(|_| limiter.take(later).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100]);
        assert_eq!(Limiter::new(0.0, 1).take(now), Duration::ZERO);
    }
}
