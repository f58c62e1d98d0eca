//! Ages and times as tables print them.

use std::time::{Duration, SystemTime};

tokio::task_local! {
    static FIXED: Fixed;
}

/// A fixed clock, for tests.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    /// The time printed in place of all times, since the Unix epoch.
    pub now: Duration,
    /// The age printed in place of all ages.
    pub age: Duration,
}

/// Returns the age of a time as text; `0s` for times in the future.
pub fn since(time: SystemTime) -> String {
    of(FIXED.try_with(|clock| clock.age).unwrap_or_else(|_| time.elapsed().unwrap_or_default()))
}

/// Returns a time as it is printed: itself, or the one set by [`fixed`].
pub fn shown(time: SystemTime) -> SystemTime {
    FIXED.try_with(|clock| SystemTime::UNIX_EPOCH + clock.now).unwrap_or(time)
}

/// Runs a future during which all printed times and ages are those of a fixed clock: for tests that compare output.
///
/// ```
/// # use std::time::{Duration, SystemTime};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use statedb::age;
///
/// let clock = age::Fixed { now: Duration::ZERO, age: Duration::from_secs(60) };
/// let shown = async { (age::since(SystemTime::now()), age::shown(SystemTime::now())) };
/// assert_eq!(age::fixed(clock, shown).await, ("60s".to_owned(), SystemTime::UNIX_EPOCH));
/// # }
/// ```
pub fn fixed<F: Future>(clock: Fixed, shown: F) -> impl Future<Output = F::Output> {
    FIXED.scope(clock, shown)
}

/// Formats a duration as `kubectl` prints ages: at most two units, only one where the second is negligible (`9m59s`,
/// `179m`, `2y1d`).
pub fn of(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |big: u64, unit: char, small: u64, part: char| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{part}"),
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        () if hours < 3 => format!("{minutes}m"),
        () if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, 'd', hours % 24, 'h'),
        () if days < 730 => format!("{days}d"),
        () if days < 8 * 365 => two(days / 365, 'y', days % 365, 'd'),
        () => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let (minute, hour, day) = (60, 3600, 86_400);
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (2 * minute, "2m"),
            (9 * minute + 59, "9m59s"),
            (10 * minute + 1, "10m"),
            (179 * minute, "179m"),
            (3 * hour, "3h"),
            (7 * hour + 59 * minute, "7h59m"),
            (47 * hour, "47h"),
            (2 * day, "2d"),
            (7 * day + 23 * hour, "7d23h"),
            (8 * day, "8d"),
            (729 * day, "729d"),
            (731 * day, "2y1d"),
            (8 * 365 * day, "8y"),
            (1_800_000_000, "57y"),
            (130, "2m10s"),
            (hour, "60m"),
            (3 * hour + minute, "3h1m"),
            (25 * hour, "25h"),
            (30_000, "8h"),
            (2 * day + hour, "2d1h"),
            (730 * day, "2y"),
            (800 * day, "2y70d"),
            (9 * 365 * day, "9y"),
        ] {
            assert_eq!(of(Duration::from_secs(seconds)), text);
        }
    }
}
