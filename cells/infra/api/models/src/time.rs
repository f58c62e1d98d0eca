//! Times and durations in Go's format.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::wire::Field;

/// A point in time in the API's format: UTC with milliseconds, `2026-11-21T12:10:29.950Z`.
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
        Self(format!("{:.3}", timestamp(time, Duration::from_millis(1))))
    }
}

impl Field for DateTime {}

/// A point in time in UTC with seconds, as endpoint logs carry it: `2026-11-21T12:10:50Z`.
///
/// A time before 1970 is written as 1970.
pub fn rfc3339(time: SystemTime) -> String {
    timestamp(time, Duration::from_secs(1)).to_string()
}

/// Returns the time in RFC 3339, UTC, with nanoseconds as Go formats them: without zeros at the end.
pub fn rfc3339_nanos(time: SystemTime) -> String {
    timestamp(time, Duration::from_nanos(1)).to_string()
}

/// Returns the time truncated to `unit`; 1970 for a time before it or beyond the year 9999.
fn timestamp(time: SystemTime, unit: Duration) -> Timestamp {
    let nanos = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let cut = nanos - nanos % unit.as_nanos();
    i128::try_from(cut).ok().and_then(|nanos| Timestamp::from_nanosecond(nanos).ok()).unwrap_or_default()
}

/// Parses RFC 3339, with nanoseconds. Returns `None` for invalid input and for times before 1970.
pub fn from_rfc3339(text: &str) -> Option<SystemTime> {
    // As Go, truncate digits below a nanosecond, which jiff refuses.
    let fraction = text.find('.').map_or(text.len(), |at| at + 1);
    let digits = text[fraction..].bytes().take_while(u8::is_ascii_digit).count();
    let (kept, zone) = (fraction + digits.min(9), fraction + digits);
    let time: Timestamp = format!("{}{}", &text[..kept], &text[zone..]).parse().ok()?;
    (time >= Timestamp::UNIX_EPOCH).then(|| time.into())
}

/// A duration in Go's format: `5m0s`, `1.5s`, `100ms`; omitted when zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub Duration);

impl Field for GoDuration {
    fn left_out(&self) -> bool {
        self.0.is_zero()
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&go_duration::format(self.0))
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        go_duration::parse(&text)
            .map(Self)
            .map_err(|error| serde::de::Error::custom(format_args!("invalid duration \"{text}\": {error}")))
    }
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
}
