//! The choice of how the kernel wakes a ring's reader, by the rate of its records.

use std::time::Duration;

/// The interval in which a ring with many records is polled: the largest delay of a
/// record. Beside it the watermark wakes the reader, at more than 40 MB/s if the ring has 64 pages.
pub const POLL_INTERVAL: Duration = Duration::from_millis(3);

/// Records in an interval from which on the ring is polled: 1,600 a second, whose wake-ups cost 1 % of a CPU.
const BUSY_RECORDS: u64 = 5;
/// The number of intervals with less than that after which each record wakes the reader again.
const QUIET_INTERVALS: u32 = 6;

/// The kind of wake-up of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wakeup {
    /// By each record.
    Record,
    /// When a part of the ring is full.
    Watermark,
}

/// The rate of a ring's records. No clock: the time of a read is an argument, since any begin.
#[derive(Clone, Debug)]
pub(super) struct Pacing {
    wakeup: Wakeup,
    /// The begin of the current interval.
    begin: Duration,
    /// Records in the current interval.
    records: u64,
    /// Intervals with few records since the last one with many.
    quiet: u32,
    /// Whether one poll has to follow although each record wakes the reader.
    has_last_poll: bool,
}

impl Pacing {
    pub(super) fn new() -> Self {
        Self { wakeup: Wakeup::Record, begin: Duration::ZERO, records: 0, quiet: 0, has_last_poll: false }
    }

    /// Notes a read of so many records; returns the kind of wake-up from now on.
    pub(super) fn note(&mut self, now: Duration, records: u64) -> Wakeup {
        self.has_last_poll = false;
        let has_ended = now.saturating_sub(self.begin) >= POLL_INTERVAL;
        match self.wakeup {
            Wakeup::Record => {
                if has_ended {
                    (self.begin, self.records) = (now, 0);
                }
                self.records += records;
                if self.records >= BUSY_RECORDS {
                    *self = Self { wakeup: Wakeup::Watermark, begin: now, ..Self::new() };
                }
            }
            Wakeup::Watermark => {
                self.records += records;
                if has_ended {
                    self.quiet = if self.records < BUSY_RECORDS { self.quiet + 1 } else { 0 };
                    (self.begin, self.records) = (now, 0);
                }
                if self.quiet >= QUIET_INTERVALS {
                    // Records that were written before the change wake no reader: they are read by one more poll.
                    *self = Self { begin: now, has_last_poll: true, ..Self::new() };
                }
            }
        }
        self.wakeup
    }

    /// Whether the ring has to be read [`POLL_INTERVAL`] after the last read.
    pub(super) fn is_polled(&self) -> bool {
        self.wakeup == Wakeup::Watermark || self.has_last_poll
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn few_records_wake_the_reader_each() {
        let mut pacing = Pacing::new();
        for read in 0..10_000 {
            // 1,000 a second.
            assert_eq!(pacing.note(MILLISECOND * read, 1), Wakeup::Record);
            assert!(!pacing.is_polled());
        }
    }

    #[test]
    fn many_records_are_polled_until_there_are_few() {
        let mut pacing = Pacing::new();
        let start = MILLISECOND * 1000;
        for record in 1..BUSY_RECORDS {
            assert_eq!(pacing.note(start, 1), Wakeup::Record, "{record}");
        }
        assert_eq!(pacing.note(start, 1), Wakeup::Watermark);
        assert!(pacing.is_polled());
        // Wake-ups by the watermark between two polls are no intervals of their own.
        for read in 0..100 {
            assert_eq!(pacing.note(start + MILLISECOND * read, 2), Wakeup::Watermark);
        }
        let end = start + MILLISECOND * 100;
        assert_eq!(pacing.note(end, 0), Wakeup::Watermark);
        for interval in 1..QUIET_INTERVALS {
            assert_eq!(pacing.note(end + POLL_INTERVAL * interval, 1), Wakeup::Watermark);
        }
        assert_eq!(pacing.note(end + POLL_INTERVAL * QUIET_INTERVALS, 0), Wakeup::Record);
        assert!(pacing.is_polled(), "records may have come before the change of the kind");
        assert_eq!(pacing.note(end + POLL_INTERVAL * (QUIET_INTERVALS + 1), 1), Wakeup::Record);
        assert!(!pacing.is_polled(), "an idle ring has no timer");
    }
}
