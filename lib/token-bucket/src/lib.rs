//! A token bucket with reservations, as in Go's rate limiter (`golang.org/x/time/rate`, which Cilium uses).
//!
//! It has no clock: the caller passes the time of each call and waits by itself.
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! let now = Instant::now();
//! let mut bucket = token_bucket::Bucket::new(10.0, 2, now);
//! let waits = [(); 3].map(|()| bucket.reserve(now).unwrap().at - now);
//! assert_eq!(waits, [0, 0, 100].map(Duration::from_millis));
//! ```

use std::time::{Duration, Instant};

/// Tokens that arrive at a rate up to a burst. A request takes one, on credit if there is none.
#[derive(Debug)]
pub struct Bucket {
    /// Tokens per second.
    rate: f64,
    /// Maximum number of tokens.
    burst: f64,
    /// Negative while requests wait.
    tokens: f64,
    /// The time at which `tokens` was computed.
    updated: Instant,
    /// The time of the latest reservation.
    last_event: Instant,
}

/// A reserved token: the time from which it may be used, and the rate at its reservation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reservation {
    /// When it may be used: not before the time of the reservation.
    pub at: Instant,
    rate: f64,
}

impl Bucket {
    /// Creates a full bucket.
    #[must_use]
    pub fn new(rate: f64, burst: u64, now: Instant) -> Self {
        let burst = burst as f64;
        Self { rate, burst, tokens: burst, updated: now, last_event: now }
    }

    /// Returns the tokens that arrive in a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Returns the maximum number of tokens.
    #[must_use]
    pub fn burst(&self) -> f64 {
        self.burst
    }

    /// Changes the rate and the burst from now on.
    pub fn adjust(&mut self, rate: f64, burst: f64, now: Instant) {
        self.advance(now);
        self.rate = rate;
        self.burst = burst;
    }

    /// Takes a token. `None` if none will ever arrive.
    pub fn reserve(&mut self, now: Instant) -> Option<Reservation> {
        self.advance(now);
        let tokens = self.tokens - 1.0;
        let wait = if tokens < 0.0 {
            Duration::try_from_secs_f64(-tokens / self.rate).ok()?
        } else {
            Duration::ZERO
        };
        if self.burst < 1.0 {
            return None;
        }
        let at = now.checked_add(wait)?;
        self.tokens = tokens;
        self.last_event = at;
        Some(Reservation { at, rate: self.rate })
    }

    /// Returns a token to the bucket, except for the part on which later reservations depend.
    pub fn cancel(&mut self, reservation: Reservation, now: Instant) {
        if reservation.at < now {
            return;
        }
        let built_upon = self.last_event.saturating_duration_since(reservation.at).as_secs_f64();
        let restored = 1.0 - built_upon * reservation.rate;
        if restored <= 0.0 {
            return;
        }
        self.advance(now);
        self.tokens = (self.tokens + restored).min(self.burst);
        if reservation.at == self.last_event
            && let Ok(gap) = Duration::try_from_secs_f64(1.0 / reservation.rate)
            && let Some(previous) = reservation.at.checked_sub(gap)
            && previous >= now
        {
            self.last_event = previous;
        }
    }

    fn advance(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.updated).as_secs_f64();
        self.tokens = (self.tokens + elapsed * self.rate).min(self.burst);
        self.updated = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(bucket: &mut Bucket, now: Instant, count: usize) -> Vec<u128> {
        (0..count).map(|_| (bucket.reserve(now).unwrap().at - now).as_millis()).collect()
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let now = Instant::now();
        let mut bucket = Bucket::new(10.0, 3, now);
        assert_eq!(waits(&mut bucket, now, 6), [0, 0, 0, 100, 200, 300]);
        let later = now + Duration::from_secs(60);
        assert_eq!(waits(&mut bucket, later, 4), [0, 0, 0, 100]);
        bucket.adjust(100.0, 1.0, later);
        assert_eq!((bucket.rate(), bucket.burst()), (100.0, 1.0));
        assert_eq!(waits(&mut bucket, later, 1), [20]);
    }

    #[test]
    fn a_cancelled_reservation_returns_its_token_unless_later_ones_have_built_upon_it() {
        let now = Instant::now();
        let mut bucket = Bucket::new(10.0, 1, now);
        let [_, second, third] = [(); 3].map(|()| bucket.reserve(now).unwrap());
        bucket.cancel(second, now);
        assert_eq!(waits(&mut bucket, now, 1), [300], "nothing of it is left");
        let mut bucket = Bucket::new(10.0, 1, now);
        let last = [(); 3].map(|()| bucket.reserve(now).unwrap())[2];
        assert_eq!(last, third);
        bucket.cancel(last, now);
        assert_eq!(waits(&mut bucket, now, 1), [200], "the place of the cancelled one");
        bucket.cancel(second, now + Duration::from_secs(9));
        assert_eq!(waits(&mut bucket, now + Duration::from_secs(9), 2), [0, 100], "it was used by then");
    }

    #[test]
    fn tokens_that_never_arrive_are_none() {
        let now = Instant::now();
        assert_eq!(Bucket::new(1.0, 0, now).reserve(now), None);
        let mut empty = Bucket::new(0.0, 1, now);
        assert!(empty.reserve(now).is_some());
        assert_eq!(empty.reserve(now), None);
        let mut slow = Bucket::new(1e-19, 1, now);
        assert!(slow.reserve(now).is_some());
        assert_eq!(slow.reserve(now), None);
    }
}
