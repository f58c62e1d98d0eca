//! Timestamps in objects.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::slim::Nil;

/// Seconds from the start of year 1 to the Unix epoch.
const EPOCH: i64 = 62_135_596_800;

/// A time in seconds, of the years 1 to 9999; formatted in UTC. `Option<Time>` takes 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(NonZeroU64);

impl Time {
    /// Returns the Unix time in seconds.
    pub fn seconds(self) -> i64 {
        // One is added so that the value is not zero; the years are bounded, so nothing overflows.
        self.0.get() as i64 - 1 - EPOCH
    }

    fn of(seconds: i64) -> Option<Time> {
        u64::try_from(seconds + EPOCH).ok().and_then(|since| NonZeroU64::new(since + 1)).map(Time)
    }
}

impl FromStr for Time {
    type Err = &'static str;

    /// Parses RFC 3339.
    fn from_str(text: &str) -> Result<Time, Self::Err> {
        let shaped = text.len() >= 20 && text.as_bytes()[10] == b'T';
        let time = shaped.then(|| text.parse::<Timestamp>().ok()).flatten();
        time.and_then(|time| Time::of(time.as_second())).ok_or("a time like 2026-01-31T12:00:00Z")
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Timestamp::from_second(self.seconds()) {
            Ok(time) => time.fmt(f),
            Err(error) => unreachable!("was a time when it was read: {error}"),
        }
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Time;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time (RFC 3339)")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Time, E> {
                text.parse().map_err(|right| E::custom(format_args!("{text:?} is wrong; give {right}")))
            }
        }
        from.deserialize_str(Text)
    }
}

impl Nil for Time {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_in_go() {
        let read = |text: &str| text.parse::<Time>().map(|time| time.to_string());
        for text in
            ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "2026-02-28T23:59:59Z", "9999-12-30T22:00:00Z"]
        {
            assert_eq!(read(text).as_deref(), Ok(text));
        }
        assert_eq!(read("2026-01-01T01:30:00.75+01:00").as_deref(), Ok("2026-01-01T00:30:00Z"));
        for text in [
            "",
            "yesterday",
            "2026-01-01",
            "2026-01-01 00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T00:00:00",
        ] {
            assert_eq!(read(text), Err("a time like 2026-01-31T12:00:00Z"), "{text}");
        }
        assert_eq!(size_of::<Option<Time>>(), 8);
    }
}
