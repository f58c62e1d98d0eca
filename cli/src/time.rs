//! Times of the API told as "so long ago".

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `1m5s ago`, or `never` for Go's zero time and what is no time.
pub(crate) fn since(timestamp: &str, now: SystemTime) -> String {
    match parse(timestamp) {
        Some(then) => {
            let seconds = now.duration_since(then).unwrap_or_default().as_secs();
            format!("{} ago", api_models::GoDuration(Duration::from_secs(seconds)))
        }
        None => "never".to_owned(),
    }
}

/// A time in UTC to the second: `2026-11-21T12:10:29.950Z`.
fn parse(timestamp: &str) -> Option<SystemTime> {
    let number = |from: usize, to: usize| timestamp.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if year < 1970 || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    // Years that begin in March have their leap day last.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days_to_year = years * 365 + years / 4 - years / 100 + years / 400;
    let days = days_to_year + (153 * months + 2) / 5 + day - 1 - DAYS_TO_1970;
    Some(UNIX_EPOCH + Duration::from_secs(((days * 24 + hour) * 60 + minute) * 60 + second))
}

/// From the first of March of the year 0 to the first of January 1970.
const DAYS_TO_1970: u64 = 719_468;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages() {
        let now = UNIX_EPOCH + Duration::from_secs(1_795_263_094);
        assert_eq!(since("2026-11-21T12:10:29.950Z", now), "1m5s ago");
        assert_eq!(since("0001-01-01T00:00:00.000Z", now), "never");
        assert_eq!(since("yesterday", now), "never");
    }

    #[test]
    fn dates_agree_with_the_models() {
        for seconds in [0, 951_782_400, 951_868_800, 1_795_263_029, 4_107_542_400] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(parse(&api_models::rfc3339(time)), Some(time), "{seconds}");
        }
    }
}
