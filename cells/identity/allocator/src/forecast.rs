//! When the identities of workloads run out, if they go on growing as they do.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hive::Health;
use identity_core::Range;

/// Interval of samples.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_secs(60);
/// Growth is measured over both: the short one sees a sudden growth within minutes, the long one a slow growth that
/// comes in bursts. The forecast is the earlier of the two.
const WINDOWS: [Duration; 2] = [Duration::from_secs(10 * 60), Duration::from_secs(6 * 3600)];
/// The shortest time over which growth is measured: pods of a rollout come within seconds, and no more after them.
const MIN_SPAN: Duration = Duration::from_secs(5 * 60);
/// Health is degraded when identities run out within this time.
const WARNING_TIME: Duration = Duration::from_secs(6 * 3600);
/// Health is degraded when more than this share of the range is in use, whatever the growth, in percent.
const WARNING_USAGE: usize = 90;

/// The use of a range over time. Pure: the caller has the clock.
#[derive(Debug, Clone)]
pub(crate) struct Forecast {
    range: Range,
    /// Ordered by time; none is older than the longest window.
    samples: VecDeque<(Instant, usize)>,
}

/// A forecast.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outlook {
    /// The number of identities in use, and in quarantine.
    pub(crate) used: usize,
    /// The number of identities in the range.
    pub(crate) capacity: usize,
    /// The time until none is free; `None` without growth.
    pub(crate) left: Option<Duration>,
}

impl Forecast {
    pub(crate) fn new(range: Range) -> Forecast {
        Forecast { range, samples: VecDeque::new() }
    }

    /// Adds the number of identities that are not free.
    pub(crate) fn sample(&mut self, now: Instant, used: usize) {
        let longest = WINDOWS.into_iter().max().unwrap_or_default();
        self.samples.retain(|(at, _)| now.saturating_duration_since(*at) <= longest);
        self.samples.push_back((now, used));
    }

    /// Returns the forecast at the time of the last sample; `None` before the first.
    pub(crate) fn outlook(&self) -> Option<Outlook> {
        let (now, used) = *self.samples.back()?;
        let capacity = self.range.len() as usize;
        let free = capacity.saturating_sub(used);
        let left = WINDOWS.into_iter().filter_map(|window| {
            let age = |at: &Instant| now.saturating_duration_since(*at);
            let (at, before) = self.samples.iter().find(|(at, _)| age(at) <= window)?;
            let grown = used.checked_sub(*before).filter(|grown| *grown > 0 && age(at) >= MIN_SPAN)?;
            Some(age(at).mul_f64(free as f64 / grown as f64))
        });
        Some(Outlook { used, capacity, left: left.min() })
    }
}

impl Outlook {
    /// Returns the warning of identities that run out; `None` if there are enough.
    pub(crate) fn warning(&self) -> Option<String> {
        let soon = self.left.filter(|left| *left < WARNING_TIME);
        if soon.is_none() && self.used * 100 < self.capacity * WARNING_USAGE {
            return None;
        }
        let when = match soon {
            Some(left) => {
                format!("; at the present growth the last one is used in {} min", left.as_secs() / 60)
            }
            None => String::new(),
        };
        Some(format!(
            "{} of {} identities are used{when}: exclude labels that differ by pod from identities (labels), so that pods \
             share them",
            self.used, self.capacity
        ))
    }

    /// Reports the forecast in health.
    pub(crate) fn report(&self, health: &Health) {
        match self.warning() {
            Some(warning) => health.degraded("Identities of workloads run out", warning),
            None => health.ok(format!("{} of {} identities are used", self.used, self.capacity)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: Range = Range { first: 256, last: 65_535 };

    /// Samples each minute; `used` by minute. Returns the outlook after each.
    fn outlooks(minutes: u32, used: impl Fn(u32) -> usize) -> Vec<Outlook> {
        let (mut forecast, begin) = (Forecast::new(RANGE), Instant::now());
        let each = (0..=minutes).map(|minute| {
            forecast.sample(begin + SAMPLE_INTERVAL * minute, used(minute));
            assert!(forecast.samples.len() <= 361, "bounded by the longest window");
            forecast.outlook().unwrap()
        });
        each.collect()
    }

    #[test]
    fn steady_growth_is_reported_hours_ahead() {
        // 100 a minute: all are used after 652 minutes.
        let all = outlooks(652, |minute| minute as usize * 100);
        let first = all.iter().position(|outlook| outlook.warning().is_some()).unwrap();
        let truth = 652 - first as u32;
        assert!((350..=361).contains(&truth), "{truth} minutes ahead");
        let left = all[first].left.unwrap().as_secs() / 60;
        assert!(left.abs_diff(truth.into()) <= 2, "{left} of {truth}");
        assert!(all[first].warning().unwrap().contains(&format!("is used in {left} min")));
        assert!(all[first..].iter().all(|outlook| outlook.warning().is_some()), "until the end");
    }

    #[test]
    fn a_sudden_growth_is_seen_within_minutes_and_forgotten_after_it() {
        // Six quiet hours, then 2,400 a minute (40 pods a second, each with labels of its own), for 10 minutes.
        let used = |minute: u32| 1_000 + 2_400 * minute.saturating_sub(360).min(10) as usize;
        let all = outlooks(900, used);
        let first = all.iter().position(|outlook| outlook.warning().is_some()).unwrap();
        assert!((361..=366).contains(&first), "after {} minutes", first - 360);
        // 25,000 are used in the end, and the growth was once: neither window warns.
        assert_eq!(all[900].warning(), None);
        assert_eq!(all[900].left, None, "no growth within six hours");
    }

    #[test]
    fn a_rollout_and_a_shrinking_cluster_are_no_warning() {
        // 500 identities within a minute, once.
        let all = outlooks(60, |minute| if minute < 20 { 3_000 } else { 3_500 });
        assert!(all.iter().all(|outlook| outlook.warning().is_none()));
        let all = outlooks(60, |minute| 30_000 - 100 * minute as usize);
        assert!(all.iter().all(|outlook| outlook.left.is_none() && outlook.warning().is_none()));
        // Nothing is said of a growth before it has lasted.
        assert!(outlooks(4, |minute| 10_000 * minute as usize).iter().all(|outlook| outlook.left.is_none()));
        assert_eq!(Forecast::new(RANGE).outlook(), None);
    }

    #[test]
    fn a_range_that_is_almost_full_is_a_warning_without_growth() {
        let all = outlooks(60, |_| 59_000);
        let warning = all[60].warning().unwrap();
        assert!(warning.starts_with("59000 of 65280 identities are used: exclude labels"), "{warning}");
        // More than the range holds, as others may have written: no time is left.
        let over = outlooks(60, |minute| 65_000 + 10 * minute as usize);
        assert_eq!(over[60].left, Some(Duration::ZERO));
    }
}
