//! The interval between collections, computed from the share of deleted entries.

use std::time::Duration;

use crate::config::ConntrackGcConfig;

/// The first interval.
pub const STARTING_INTERVAL: Duration = Duration::from_secs(300);
/// The shortest computed interval.
pub const MIN_INTERVAL: Duration = Duration::from_secs(10);
/// The longest computed interval.
pub const MAX_INTERVAL: Duration = Duration::from_secs(12 * 3600);

/// From this deleted share of a map on the interval is shortened, by the share.
const MANY: f64 = 0.25;
/// Maximum shortening at once: to a tenth.
const MOST: f64 = 0.9;
/// Below this share the interval is extended.
const FEW: f64 = 0.05;
const GROWTH: f64 = 1.5;

/// Returns the interval after a round that deleted this share of the fullest map, as Cilium computes it.
pub fn next_interval(interval: Duration, deleted: f64) -> Duration {
    let seconds = |factor: f64| Duration::from_secs_f64((interval.as_secs_f64() * factor).round());
    if deleted > MANY {
        seconds(1.0 - deleted.min(MOST)).max(MIN_INTERVAL)
    } else if deleted < FEW {
        seconds(GROWTH).min(MAX_INTERVAL)
    } else {
        interval
    }
}

/// The interval between runs.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    config: ConntrackGcConfig,
    current: Duration,
}

impl Interval {
    pub(crate) fn new(config: ConntrackGcConfig) -> Interval {
        let interval = Interval { config, current: STARTING_INTERVAL };
        Interval { current: interval.limited(STARTING_INTERVAL), ..interval }
    }

    /// Returns the current interval.
    pub(crate) fn current(&self) -> Duration {
        self.current
    }

    /// Returns the interval after a round that deleted this share of the fullest map.
    pub(crate) fn after(&mut self, deleted: f64) -> Duration {
        self.current = self.limited(next_interval(self.current, deleted));
        self.current
    }

    /// Returns the interval after a run that a signal has requested: shorter if many entries had expired, but never
    /// longer, as an early run finds fewer expired entries.
    pub(crate) fn after_signal(&mut self, deleted: f64) -> Duration {
        self.current = self.current.min(self.limited(next_interval(self.current, deleted)));
        self.current
    }

    /// Returns the interval after a change of options. One that was fixed before starts from [`STARTING_INTERVAL`].
    pub(crate) fn follow(&mut self, config: ConntrackGcConfig) -> Duration {
        let was_fixed = !self.config.conntrack_gc_interval.is_zero();
        self.config = config;
        self.current = self.limited(if was_fixed { STARTING_INTERVAL } else { self.current });
        self.current
    }

    fn limited(&self, interval: Duration) -> Duration {
        let (fixed, max) = (self.config.conntrack_gc_interval, self.config.conntrack_gc_max_interval);
        if !fixed.is_zero() {
            fixed
        } else if !max.is_zero() {
            interval.min(max)
        } else {
            interval
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(fixed: u64, max: u64) -> Interval {
        let seconds = Duration::from_secs;
        let config = ConntrackGcConfig {
            conntrack_gc_interval: seconds(fixed),
            conntrack_gc_max_interval: seconds(max),
        };
        Interval::new(config)
    }

    #[test]
    fn much_makes_it_shorter_and_little_longer() {
        let seconds = |start: u64, deleted| next_interval(Duration::from_secs(start), deleted).as_secs();
        assert_eq!(seconds(300, 0.0), 450);
        assert_eq!(seconds(300, 0.049), 450);
        assert_eq!(seconds(300, 0.05), 300);
        assert_eq!(seconds(300, 0.25), 300);
        assert_eq!(seconds(300, 0.5), 150);
        assert_eq!(seconds(300, 1.0), 30);
        assert_eq!(seconds(15, 1.0), 10);
        assert_eq!(seconds(40_000, 0.0), 12 * 3600);
    }

    #[test]
    fn options_fix_it_or_bound_it() {
        let mut free = interval(0, 0);
        assert_eq!(free.current(), STARTING_INTERVAL);
        assert_eq!([0.0, 0.0, 0.8].map(|d| free.after(d).as_secs()), [450, 675, 135]);
        let mut bounded = interval(0, 400);
        assert_eq!([0.0, 0.0, 0.5].map(|d| bounded.after(d).as_secs()), [400, 400, 200]);
        let mut signalled = interval(0, 0);
        assert_eq!([0.0, 0.5, 0.1].map(|d| signalled.after_signal(d).as_secs()), [300, 150, 150]);
        let mut fixed = interval(7, 400);
        assert_eq!(
            (fixed.current().as_secs(), fixed.after(0.0).as_secs(), fixed.after(1.0).as_secs()),
            (7, 7, 7)
        );
    }

    #[test]
    fn other_options_count_at_once() {
        let mut followed = interval(0, 0);
        let mut follow = |fixed, max| followed.follow(interval(fixed, max).config).as_secs();
        assert_eq!([follow(0, 100), follow(7, 100), follow(0, 0), follow(0, 400)], [100, 7, 300, 300]);
    }
}
