//! A token bucket with reservations, with the arithmetic of the limiter that Cilium uses.

use std::time::Duration;

use tokio::time::Instant;

/// Tokens that come at a rate up to a burst. A request takes one, on credit if there is none.
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: f64,
    burst: f64,
    tokens: f64,
    at: Instant,
    last_event: Instant,
}

/// A token taken: when it may be used, and at which rate it was lent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reservation {
    pub(crate) at: Instant,
    rate: f64,
}

impl Bucket {
    pub(crate) fn new(rate: f64, burst: u64, now: Instant) -> Self {
        let burst = burst as f64;
        Self { rate, burst, tokens: burst, at: now, last_event: now }
    }

    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }

    pub(crate) fn burst(&self) -> f64 {
        self.burst
    }

    /// From now on tokens come at another rate up to another burst.
    pub(crate) fn adjust(&mut self, rate: f64, burst: f64, now: Instant) {
        self.advance(now);
        self.rate = rate;
        self.burst = burst;
    }

    /// Takes a token. `None` if none will ever come.
    pub(crate) fn reserve(&mut self, now: Instant) -> Option<Reservation> {
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
        self.tokens = tokens;
        let at = now + wait;
        self.last_event = at;
        Some(Reservation { at, rate: self.rate })
    }

    /// Gives a token back, but for what later reservations have built upon it.
    pub(crate) fn cancel(&mut self, reservation: Reservation, now: Instant) {
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
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + elapsed * self.rate).min(self.burst);
        self.at = now;
    }
}
