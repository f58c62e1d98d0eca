//! The rate of requests to the API server.

use std::time::Duration;

use parking_lot::Mutex;
use token_bucket::Bucket;
use tokio::time::Instant;

/// A rate limit like client-go's: a rate with a burst, first come, first served.
#[derive(Debug)]
pub(crate) struct Limiter {
    /// `None` without a limit.
    bucket: Option<Mutex<Bucket>>,
}

impl Limiter {
    /// Creates a limit of `rate` requests a second after a burst; no limit if the rate is not positive.
    pub(crate) fn new(rate: f64, burst: u32) -> Limiter {
        let bucket = || Bucket::new(rate, burst.max(1).into(), Instant::now().into_std());
        Limiter { bucket: (rate > 0.0).then(|| Mutex::new(bucket())) }
    }

    /// Waits until a request may be sent; returns the wait.
    pub(crate) async fn acquire(&self) -> Duration {
        let wait = self.reserve(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        wait
    }

    fn reserve(&self, now: Instant) -> Duration {
        let Some(bucket) = &self.bucket else { return Duration::ZERO };
        let now = now.into_std();
        bucket.lock().reserve(now).map_or(Duration::MAX, |reservation| reservation.at - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let limiter = Limiter::new(10.0, 3);
        let now = Instant::now();
        let waits: Vec<u128> = (0..6).map(|_| limiter.reserve(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200, 300]);
        let later = now + Duration::from_secs(60);
        let waits: Vec<u128> = (0..4).map(|_| limiter.reserve(later).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100]);
        assert_eq!(Limiter::new(0.0, 1).reserve(now), Duration::ZERO);
    }
}
