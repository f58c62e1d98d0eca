//! Times and durations as Go writes them.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::wire::Field;

/// A point in time as the API writes it: UTC with milliseconds, `2026-11-21T12:10:29.950Z`.
///
/// Always written; the default is Go's zero time, which stands for "never".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DateTime(pub String);

impl Default for DateTime {
    fn default() -> Self {
        Self("0001-01-01T00:00:00.000Z".to_owned())
    }
}

impl From<SystemTime> for DateTime {
    fn from(time: SystemTime) -> Self {
        let seconds = rfc3339(time);
        let millis = since_epoch(time).subsec_millis();
        Self(format!("{}.{millis:03}Z", seconds.trim_end_matches('Z')))
    }
}

impl Field for DateTime {}

/// A point in time in UTC with seconds, as endpoint logs carry it: `2026-11-21T12:10:50Z`.
///
/// A time before 1970 is written as 1970.
pub fn rfc3339(time: SystemTime) -> String {
    let seconds = since_epoch(time).as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// The point in time that a text of RFC 3339 tells; `None` if it is none, or before 1970.
pub fn from_rfc3339(text: &str) -> Option<SystemTime> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let zone = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(zone);
    let numbers = |text: &str, separator| -> Option<Vec<u64>> {
        text.split(separator).map(|part| part.parse().ok()).collect()
    };
    let (whole, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let (date, clock) = (numbers(date, '-')?, numbers(whole, ':')?);
    let ([year, month @ 1..=12, day @ 1..=31], [hour @ 0..24, minute @ 0..60, second @ 0..=60]) =
        (date.as_slice(), clock.as_slice())
    else {
        return None;
    };
    let nanos = fraction.bytes().take(9).try_fold((0_u32, 100_000_000), |(sum, place), digit| {
        digit.is_ascii_digit().then(|| (sum + u32::from(digit - b'0') * place, place / 10))
    })?;
    // Years begin in March: the day that is sometimes missing is the last.
    let (year, month) = if *month > 2 { (*year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = (year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day)
        .checked_sub(719_469)?;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    let seconds = match zone.split_at(1) {
        ("+" | "-", offset) => {
            let [hours, minutes] = numbers(offset, ':')?[..] else { return None };
            let offset = hours * 3600 + minutes * 60;
            if zone.starts_with('+') { seconds.checked_sub(offset)? } else { seconds + offset }
        }
        (_, "") => seconds,
        _ => return None,
    };
    UNIX_EPOCH.checked_add(Duration::new(seconds, nanos.0))
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Year, month and day of a day counted from 1970-01-01 in the proleptic Gregorian calendar, by eras of
/// 400 years that begin on the first of March.
fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// A duration as Go prints it: `5m0s`, `1.5s`, `100ms`; left out when zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub Duration);

impl Field for GoDuration {
    fn left_out(&self) -> bool {
        self.0.is_zero()
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        match nanos {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => write!(f, "{}µs", decimal(nanos, 3)),
            1_000_000..1_000_000_000 => write!(f, "{}ms", decimal(nanos, 6)),
            _ => {
                let (minutes, rest) = (nanos / 60_000_000_000, nanos % 60_000_000_000);
                if minutes >= 60 {
                    write!(f, "{}h", minutes / 60)?;
                }
                if minutes > 0 {
                    write!(f, "{}m", minutes % 60)?;
                }
                write!(f, "{}s", decimal(rest, 9))
            }
        }
    }
}

/// `value / 10^digits` without trailing zeros.
fn decimal(value: u128, digits: usize) -> String {
    let unit = 10u128.pow(digits as u32);
    let text = format!("{}.{:0digits$}", value / unit, value % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text)
            .map(Self)
            .ok_or_else(|| serde::de::Error::custom(format_args!("invalid duration \"{text}\"")))
    }
}

fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut seconds = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        if rest == "0" {
            break;
        }
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..unit_at].parse().ok()?;
        rest = &rest[unit_at..];
        let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        seconds += number
            * match &rest[..unit_end] {
                "ns" => 1e-9,
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &rest[unit_end..];
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        for seconds in [0, 1, 68_169_600, 951_782_400, 1_795_318_449, 4_107_542_399, 13_574_649_600] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(from_rfc3339(&rfc3339(time)), Some(time));
        }
        let time = UNIX_EPOCH + Duration::new(1_795_318_449, 250_000_001);
        for text in ["2026-11-22T03:34:09.250000001Z", "2026-11-22T05:04:09.2500000019+01:30"] {
            assert_eq!(from_rfc3339(text), Some(time), "{text}");
        }
        for text in [
            "",
            "2026-11-22",
            "2026-13-22T00:00:00Z",
            "0001-01-01T00:00:00Z",
            "2026-11-22T00:00:00",
            "2026-11-22T24:00:00Z",
            "aTbZ",
            "2026-11-22T00:00:00.xZ",
        ] {
            assert_eq!(from_rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_utc_with_leap_years() {
        let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(at(1_795_263_029), "2026-11-21T12:10:29Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
        let time = UNIX_EPOCH + Duration::from_millis(1_795_263_029_950);
        assert_eq!(DateTime::from(time).0, "2026-11-21T12:10:29.950Z");
    }

    #[test]
    fn durations_are_printed_and_read_as_go_does() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_500, "1.5µs"),
            (100_000_000, "100ms"),
            (1_000_000_000, "1s"),
            (25_009_463_518, "25.009463518s"),
            (60_000_000_000, "1m0s"),
            (300_000_000_000, "5m0s"),
            (3_600_000_000_000, "1h0m0s"),
            (5_430_500_000_000, "1h30m30.5s"),
        ] {
            let duration = Duration::from_nanos(nanos);
            assert_eq!(GoDuration(duration).to_string(), text);
            let read = parse(text).unwrap();
            assert!(read.abs_diff(duration) < Duration::from_nanos(2), "{text}: {read:?}");
        }
        for text in ["", "5", "s", "5x", "-1s", "1.2.3s"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
