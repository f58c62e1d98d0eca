//! The times of comparisons of the kernel with the desired state: a pure function of events and their times.

use std::time::{Duration, Instant};

/// The minimum time between two comparisons.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// How long changes are batched: they come in groups, and the kernel reports some before they take effect.
pub(crate) const DEBOUNCE: Duration = Duration::from_millis(20);
/// The maximum time until a failed comparison is repeated.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The outcome of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// Everything is as desired, or was repaired.
    Done,
    /// Parts of the host's side are missing; applying the desired state recreates them.
    HostSideLost,
    /// The comparison could not be finished.
    Failed,
}

/// The times of comparisons.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// Zero disables comparisons.
    interval: Duration,
    next: Instant,
    last: Instant,
    /// The next comparison follows an alarm. The kernel may send an alarm before the change, so a second comparison
    /// follows.
    alarmed: bool,
    /// When owners of other map entries compare theirs again.
    drift_checks_at: Instant,
    /// The next comparison reports repairs of other owners.
    drift_repaired: bool,
}

impl Schedule {
    pub(crate) fn new(interval: Duration, now: Instant) -> Schedule {
        Schedule {
            interval,
            next: now + interval,
            last: now,
            alarmed: false,
            drift_checks_at: now + interval,
            drift_repaired: false,
        }
    }

    /// Sets the interval; zero disables comparisons.
    pub(crate) fn set_interval(&mut self, interval: Duration, now: Instant) {
        if self.interval != interval {
            self.interval = interval;
            self.next = self.next.min(now + interval);
            self.drift_checks_at = now + interval;
        }
    }

    /// Schedules a comparison after the debounce time.
    pub(crate) fn soon(&mut self, now: Instant) {
        self.next = self.next.min(now.max(self.last + MIN_INTERVAL) + DEBOUNCE);
    }

    /// Schedules a comparison that detects removals which happened while a desired state was applied.
    pub(crate) fn confirm(&mut self, now: Instant) {
        self.next = self.next.min(now + MIN_INTERVAL);
    }

    /// Schedules a comparison after a removal that the kernel has reported.
    pub(crate) fn alarm(&mut self, now: Instant) {
        self.soon(now);
        self.alarmed = true;
    }

    /// Schedules a comparison that reports repairs of other owners.
    pub(crate) fn drift_repaired(&mut self, now: Instant) {
        self.soon(now);
        self.drift_repaired = true;
    }

    /// Whether repairs of other owners would schedule a comparison that is not scheduled for that yet.
    pub(crate) fn awaits_drift_repairs(&self) -> bool {
        !self.drift_repaired && !self.interval.is_zero()
    }

    /// Returns when the next comparison is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        (!self.interval.is_zero()).then_some(self.next)
    }

    /// Returns whether owners of other map entries have to compare theirs with this comparison. Call it once for each.
    pub(crate) fn take_drift_checks(&mut self, now: Instant) -> bool {
        let due = self.drift_checks_at <= now;
        if due {
            self.drift_checks_at = now + self.interval;
        }
        due
    }

    /// Schedules the next comparison after this one.
    pub(crate) fn compared(&mut self, comparison: Comparison, now: Instant) {
        let alarmed = std::mem::take(&mut self.alarmed);
        let wait = match comparison {
            Comparison::Failed => self.interval.min(MAX_RETRY_INTERVAL),
            Comparison::Done | Comparison::HostSideLost if alarmed => MIN_INTERVAL,
            Comparison::Done | Comparison::HostSideLost => self.interval,
        };
        (self.last, self.next, self.drift_repaired) = (now, now + wait, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    fn start() -> (Schedule, Instant) {
        let now = Instant::now();
        (Schedule::new(INTERVAL, now), now)
    }

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn an_alarm_is_followed_by_two_comparisons_a_second_apart() {
        let (mut schedule, start) = start();
        let alarm = start + ms(10_000);
        schedule.alarm(alarm);
        assert_eq!(schedule.deadline(), Some(alarm + DEBOUNCE));
        schedule.alarm(alarm + ms(10));
        assert_eq!(schedule.deadline(), Some(alarm + DEBOUNCE), "alarms do not put it off");
        let first = alarm + DEBOUNCE;
        schedule.compared(Comparison::Done, first);
        assert_eq!(schedule.deadline(), Some(first + MIN_INTERVAL));
        schedule.compared(Comparison::Done, first + MIN_INTERVAL);
        assert_eq!(schedule.deadline(), Some(first + MIN_INTERVAL + INTERVAL));
    }

    #[test]
    fn a_flood_of_alarms_causes_one_comparison_a_second() {
        let (mut schedule, start) = start();
        let (mut now, mut comparisons) = (start, 0);
        while now < start + ms(10_000) {
            schedule.alarm(now);
            if schedule.deadline().is_some_and(|at| at <= now) {
                schedule.compared(Comparison::HostSideLost, now);
                comparisons += 1;
            }
            now += ms(1);
        }
        assert!((9..=10).contains(&comparisons), "{comparisons}");
    }

    #[test]
    fn failures_are_repeated_earlier_and_an_alarm_before_is_over() {
        let (mut schedule, start) = start();
        schedule.alarm(start);
        schedule.compared(Comparison::Failed, start);
        assert_eq!(schedule.deadline(), Some(start + MAX_RETRY_INTERVAL));
        schedule.compared(Comparison::Done, start + MAX_RETRY_INTERVAL);
        assert_eq!(schedule.deadline(), Some(start + MAX_RETRY_INTERVAL + INTERVAL));
    }

    #[test]
    fn the_interval_changes_and_ends() {
        let (mut schedule, start) = start();
        schedule.set_interval(Duration::ZERO, start);
        assert_eq!(schedule.deadline(), None);
        assert!(!schedule.awaits_drift_repairs());
        schedule.set_interval(ms(300), start + ms(5));
        assert!(schedule.deadline().is_some_and(|at| at <= start + ms(305)));
        schedule.compared(Comparison::Done, start + ms(305));
        assert_eq!(schedule.deadline(), Some(start + ms(605)));
    }

    #[test]
    fn other_owners_compare_once_an_interval_and_report_once() {
        let (mut schedule, start) = start();
        assert!(!schedule.take_drift_checks(start + ms(1000)));
        assert!(schedule.take_drift_checks(start + INTERVAL));
        assert!(!schedule.take_drift_checks(start + INTERVAL));
        assert!(schedule.awaits_drift_repairs());
        schedule.drift_repaired(start + INTERVAL);
        assert!(!schedule.awaits_drift_repairs());
        schedule.compared(Comparison::Done, start + INTERVAL + DEBOUNCE);
        assert!(schedule.awaits_drift_repairs());
    }
}
