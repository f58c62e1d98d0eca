//! The share of a processor that a pass through a map takes.

use std::time::{Duration, Instant};

/// A pass rests this many times as long as it has worked: 1/20 of a processor, with a reserve for what is not measured.
const REST_FACTOR: u32 = 24;
/// How often a pause looks whether the pass is to end.
const SLICE: Duration = Duration::from_millis(50);
/// The pause of a pass that is late, or that a full map waits for.
const SHORT_REST: Duration = Duration::from_millis(3);

/// The pauses of a pass. Entries that have ended do no harm for a minute more; a processor that packets need is scarce.
#[derive(Debug)]
pub struct Pace {
    /// When the pass must no longer be slow.
    hurry: Instant,
    worked_since: Instant,
}

impl Pace {
    /// Returns the pace of a regular pass, which may take this long; then it no longer keeps its share.
    #[must_use]
    pub fn regular(limit: Duration) -> Self {
        let now = Instant::now();
        Self { hurry: now + limit, worked_since: now }
    }

    /// Returns the pace of a pass that a full map waits for.
    #[must_use]
    pub fn urgent() -> Self {
        Self::regular(Duration::ZERO)
    }

    /// Pauses after a chunk of entries, until `is_over` at most.
    pub fn rest(&mut self, is_over: impl Fn() -> bool) {
        let now = Instant::now();
        let mut left = match now < self.hurry {
            true => (now - self.worked_since) * REST_FACTOR,
            false => SHORT_REST,
        };
        while !left.is_zero() && !is_over() {
            let slice = left.min(SLICE);
            std::thread::sleep(slice);
            left -= slice;
        }
        self.worked_since = Instant::now();
    }
}
