//! Durations as Go writes and reads them: `1h15m30.5s`, `300ms`.
//!
//! ```
//! use std::time::Duration;
//!
//! let duration = go_duration::parse("1m30.5s").unwrap();
//! assert_eq!(duration, Duration::from_millis(90_500));
//! assert_eq!(go_duration::format(duration), "1m30.5s");
//! ```

use std::borrow::Cow;
use std::error::Error;
use std::fmt::{self, Write};
use std::time::Duration;

/// Units with their nanoseconds. Go accepts both code points of the micro sign: U+00B5 and the Greek letter U+03BC.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError(Cow<'static, str>);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ParseError {}

impl From<&'static str> for ParseError {
    fn from(reason: &'static str) -> Self {
        ParseError(reason.into())
    }
}

/// Parses a duration in Go's syntax: decimal numbers, each with a unit (`ns`, `us`, `ms`, `s`, `m`, `h`); `0` needs
/// none. Durations are limited to `i64::MAX` nanoseconds (292 years), as in Go; negative ones are refused.
pub fn parse(text: &str) -> Result<Duration, ParseError> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if let Some(positive) = unsigned.strip_prefix('-') {
        nanoseconds(positive)?;
        return Err("must not be negative".into());
    }
    nanoseconds(unsigned).map(Duration::from_nanos)
}

fn nanoseconds(text: &str) -> Result<u64, ParseError> {
    if text == "0" {
        return Ok(0);
    }
    if text.is_empty() {
        return Err("empty".into());
    }
    let (mut rest, mut total) = (text, 0_u128);
    while !rest.is_empty() {
        let number = rest.find(|c: char| c != '.' && !c.is_ascii_digit()).ok_or("missing unit")?;
        let (digits, tail) = rest.split_at(number);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if whole.is_empty() && fraction.is_empty() {
            return Err(ParseError(format!("expected a number at \"{rest}\"").into()));
        }
        let end = tail.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, after) = tail.split_at(end);
        let scale = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| u128::from(*scale));
        let scale = scale.ok_or_else(|| ParseError(format!("unknown unit \"{unit}\"").into()))?;
        let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| "too long")? };
        // Digits beyond 18 are below a nanosecond even for hours, and 10^18 keeps the product within u128.
        let fraction = &fraction[..fraction.len().min(18)];
        let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| "too long")? };
        let part = part * scale / 10_u128.pow(fraction.len() as u32);
        total = whole.checked_mul(scale).and_then(|w| w.checked_add(part + total)).ok_or("too long")?;
        rest = after;
    }
    u64::try_from(total).ok().filter(|ns| *ns <= i64::MAX as u64).ok_or("too long".into())
}

/// Formats a duration as Go's `Duration.String` does: `1h15m30.5s`, `0s`, `1.5ms`.
pub fn format(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let below_second = [(1_000_000, "ms"), (1_000, "\u{b5}s"), (1, "ns")];
    if nanos == 0 {
        return "0s".to_owned();
    }
    if nanos < 1_000_000_000 {
        let (scale, unit) = below_second.into_iter().find(|(scale, _)| nanos >= *scale).unwrap_or((1, "ns"));
        return decimal(nanos, scale) + unit;
    }
    let (hours, minutes) = (nanos / 3_600_000_000_000, nanos / 60_000_000_000 % 60);
    let mut text = String::new();
    if hours > 0 {
        let _ = write!(text, "{hours}h");
    }
    if hours > 0 || minutes > 0 {
        let _ = write!(text, "{minutes}m");
    }
    text + &decimal(nanos % 60_000_000_000, 1_000_000_000) + "s"
}

fn decimal(value: u128, scale: u128) -> String {
    let (whole, fraction) = (value / scale, value % scale);
    if fraction == 0 {
        return whole.to_string();
    }
    let digits = scale.ilog10() as usize;
    format!("{whole}.{fraction:0digits$}").trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_as_go_does() {
        for (text, nanos) in [
            ("0", 0),
            ("5m", 300_000_000_000),
            ("1h15m30.918273645s", 4_530_918_273_645),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("+10ms", 10_000_000),
            ("2us3ns", 2_003),
            ("1\u{b5}s", 1_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        for (text, error) in [
            ("", "empty"),
            ("5", "missing unit"),
            ("5d", "unknown unit \"d\""),
            ("5 s", "unknown unit \" s\""),
            ("s", "expected a number at \"s\""),
            (".s", "expected a number at \".s\""),
            ("-5s", "must not be negative"),
            ("9999999h", "too long"),
            ("99999999999999999999999999999999999999999h", "too long"),
        ] {
            assert_eq!(parse(text).map_err(|error| error.to_string()), Err(error.to_owned()), "{text}");
        }
    }

    #[test]
    fn formats_as_go_does() {
        for text in ["0s", "1ns", "1.5\u{b5}s", "300ms", "1.001s", "30s", "5m0s", "1h0m0s", "1h15m30.5s"] {
            assert_eq!(format(parse(text).unwrap()), text);
        }
    }

    proptest! {
        #[test]
        fn text_and_back(nanos in 0..=i64::MAX as u64) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }

        #[test]
        fn never_panics(text in ".{0,20}") {
            let _ = parse(&text);
        }
    }
}
