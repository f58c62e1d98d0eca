//! How long ago something was, as Kubernetes' tools print it.

use std::time::{Duration, SystemTime};

/// Time since then; nothing for times to come.
pub(crate) fn since(then: SystemTime) -> String {
    text(then.elapsed().unwrap_or_default())
}

fn text(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |first: u64, unit: &str, second: u64, small: &str| match second {
        0 => format!("{first}{unit}"),
        _ => format!("{first}{unit}{second}{small}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_as_kubernetes_chooses_them() {
        let shown = |seconds| text(Duration::from_secs(seconds));
        let day = 86_400;
        let ages = [
            (119, "119s"),
            (120, "2m"),
            (130, "2m10s"),
            (600, "10m"),
            (10_800, "3h"),
            (10_860, "3h1m"),
            (30_000, "8h"),
            (2 * day, "2d"),
            (2 * day + 3600, "2d1h"),
            (9 * day, "9d"),
            (800 * day, "2y70d"),
            (9 * 365 * day, "9y"),
        ];
        for (seconds, text) in ages {
            assert_eq!(shown(seconds), text);
        }
    }
}
