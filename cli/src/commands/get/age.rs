//! The age of an object, in the format of `kubectl`: the larger, the coarser.

use k8s_types::Time;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// Returns the age of an object created at a time; `now` in seconds since 1970.
pub(super) fn age(made: Option<Time>, now: i64) -> String {
    made.map_or_else(|| "<unknown>".to_owned(), |made| human(now - made.seconds()))
}

/// Implements `HumanDuration` of `k8s.io/apimachinery/pkg/util/duration`: two units while the smaller one is
/// significant.
fn human(seconds: i64) -> String {
    let bounds = [2 * MINUTE, 10 * MINUTE, 3 * HOUR, 8 * HOUR, 2 * DAY, 8 * DAY, 2 * YEAR, 8 * YEAR];
    match bounds.iter().take_while(|bound| seconds >= **bound).count() {
        // A small clock skew between node and server is not an error.
        0 if seconds < -1 => "<invalid>".to_owned(),
        0 => format!("{}s", seconds.max(0)),
        1 => two(seconds, (MINUTE, 'm'), (1, 's')),
        2 => format!("{}m", seconds / MINUTE),
        3 => two(seconds, (HOUR, 'h'), (MINUTE, 'm')),
        4 => format!("{}h", seconds / HOUR),
        5 => two(seconds, (DAY, 'd'), (HOUR, 'h')),
        6 => format!("{}d", seconds / DAY),
        7 => two(seconds, (YEAR, 'y'), (DAY, 'd')),
        _ => format!("{}y", seconds / YEAR),
    }
}

/// Formats the whole part in a unit, and the remainder in a smaller one if there is any.
fn two(seconds: i64, (large, name): (i64, char), (small, small_name): (i64, char)) -> String {
    match seconds % large / small {
        0 => format!("{}{name}", seconds / large),
        rest => format!("{}{name}{rest}{small_name}", seconds / large),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_as_coarse_as_those_of_kubectl() {
        for (seconds, expected) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (130, "2m10s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 5 * MINUTE + 59, "3h5m"),
            (8 * HOUR - 1, "7h59m"),
            (8 * HOUR + 5 * MINUTE, "8h"),
            (2 * DAY - 1, "47h"),
            (2 * DAY, "2d"),
            (5 * DAY + 2 * HOUR, "5d2h"),
            (8 * DAY - 1, "7d23h"),
            (8 * DAY + 5 * HOUR, "8d"),
            (2 * YEAR - 1, "729d"),
            (2 * YEAR, "2y"),
            (3 * YEAR + 40 * DAY, "3y40d"),
            (8 * YEAR - 1, "7y364d"),
            (8 * YEAR + 100 * DAY, "8y"),
        ] {
            assert_eq!(human(seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn an_object_without_a_creation_time_has_no_age() {
        assert_eq!(age(None, 7), "<unknown>");
        assert_eq!(age("1970-01-01T00:00:10Z".parse().ok(), 75), "65s");
    }
}
