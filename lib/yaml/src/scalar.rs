//! The values of plain scalars.

use serde_json::{Number, Value};

use crate::Version;

/// Returns the value of a plain scalar; `None` for infinite and undefined numbers.
pub(crate) fn resolve(text: &str, version: Version) -> Option<Value> {
    let old = version == Version::V1_1;
    Some(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => true.into(),
        "false" | "False" | "FALSE" => false.into(),
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" if old => true.into(),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" if old => false.into(),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf" | "-.INF" | ".nan"
        | ".NaN" | ".NAN" => return None,
        _ if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) => text.into(),
        _ if !old && !is_core_number(text) => text.into(),
        _ => match number(&text.replace('_', "")) {
            Some(number) => Value::Number(number?),
            None => text.into(),
        },
    })
}

/// Whether YAML 1.2 reads a text as a number: without separators and, but for `0x` and `0o`, without leading zeros.
fn is_core_number(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let octal_or_binary = digits.starts_with("0b") || digits.starts_with("0B") || digits.starts_with("0O");
    let leading_zero = digits.len() > 1 && digits.starts_with('0') && digits.as_bytes()[1].is_ascii_digit();
    !text.contains('_') && !octal_or_binary && !leading_zero
}

/// Parses a number; the inner option is none if it is out of range.
fn number(text: &str) -> Option<Option<Number>> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let prefixed = [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2), ("0", 8)];
    let radix = prefixed.iter().find(|(prefix, _)| digits.len() > prefix.len() && digits.starts_with(prefix));
    let (digits, radix) = match radix {
        Some(&(prefix, radix)) => (&digits[prefix.len()..], radix),
        None => (digits, 10),
    };
    if digits.bytes().all(|c| c.is_ascii_alphanumeric())
        && let Ok(value) = u64::from_str_radix(digits, radix)
    {
        return match negative {
            false => Some(Some(value.into())),
            true => match 0i64.checked_sub_unsigned(value) {
                Some(value) => Some(Some(value.into())),
                None => Some(Number::from_f64(-(value as f64))),
            },
        };
    }
    float(text).map(Number::from_f64)
}

/// Parses `[-+]?[0-9]*\.?[0-9]+([eE][-+][0-9]+)?` and similar forms.
fn float(text: &str) -> Option<f64> {
    let shape = text.bytes().all(|c| c.is_ascii_digit() || matches!(c, b'+' | b'-' | b'.' | b'e' | b'E'));
    let digit = text.bytes().any(|c| c.is_ascii_digit());
    if shape && digit { text.parse().ok() } else { None }
}

/// Whether a string may be written without quotes: no parser reads it as another type, including older ones, to which
/// `1:30` is a number and `2026-1-2` a time.
pub fn is_plain_string(text: &str) -> bool {
    matches!(resolve(text, Version::V1_1), Some(Value::String(_)))
        && text != "<<"
        && !base_sixty(text)
        && !timestamp(text)
}

/// Whether a text is a sexagesimal number: `[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?`.
fn base_sixty(text: &str) -> bool {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = whole.strip_prefix(['-', '+']).unwrap_or(whole).split(':');
    let digits = |text: &str| text.bytes().all(|c| c.is_ascii_digit() || c == b'_');
    let first = parts.next().unwrap_or_default();
    let sixties: Vec<&str> = parts.collect();
    digits(fraction)
        && digits(first)
        && first.starts_with(|c: char| c.is_ascii_digit())
        && !sixties.is_empty()
        && sixties.iter().all(|part| matches!(part.as_bytes(), [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9']))
}

/// Whether a text is a date, or a date with a time.
fn timestamp(text: &str) -> bool {
    let number = |text: &str, from: u32, to: u32| {
        (1..=2).contains(&text.len())
            && text.bytes().all(|c| c.is_ascii_digit())
            && text.parse().is_ok_and(|number| (from..=to).contains(&number))
    };
    let date = |text: &str| match text.split('-').collect::<Vec<_>>()[..] {
        [year, month, day] => {
            year.len() == 4
                && year.bytes().all(|c| c.is_ascii_digit())
                && number(month, 1, 12)
                && number(day, 1, 31)
        }
        _ => false,
    };
    let clock = |text: &str| match text.split(':').collect::<Vec<_>>()[..] {
        [hour, minute, second] => {
            let (second, fraction) = second.split_once('.').unwrap_or((second, "0"));
            number(hour, 0, 23)
                && number(minute, 0, 59)
                && number(second, 0, 59)
                && !fraction.is_empty()
                && fraction.bytes().all(|c| c.is_ascii_digit())
        }
        _ => false,
    };
    let zone = |text: &str| match text.split_once(':') {
        Some((hours, minutes)) => [hours, minutes].iter().all(|part| part.len() == 2 && number(part, 0, 59)),
        None => false,
    };
    match text.split_once(['T', 't']) {
        Some((day, time)) => {
            date(day)
                && match time.split_once(['Z', '+', '-']) {
                    Some((time, "")) => text.ends_with('Z') && clock(time),
                    Some((time, offset)) => clock(time) && zone(offset),
                    None => false,
                }
        }
        None => match text.split_once(' ') {
            Some((day, time)) => date(day) && clock(time),
            None => date(text),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn versions_differ_in_switches_and_numbers() {
        for (text, old, core) in [
            ("on", json!(true), json!("on")),
            ("No", json!(false), json!("No")),
            ("010", json!(8), json!("010")),
            ("0x1f", json!(31), json!(31)),
            ("0o17", json!(15), json!(15)),
            ("0b11", json!(3), json!("0b11")),
            ("1_000", json!(1000), json!("1_000")),
            ("-7", json!(-7), json!(-7)),
            ("1e3", json!(1000.0), json!(1000.0)),
            ("True", json!(true), json!(true)),
            ("~", json!(null), json!(null)),
            ("1.2.3", json!("1.2.3"), json!("1.2.3")),
        ] {
            assert_eq!(resolve(text, Version::V1_1), Some(old), "{text}");
            assert_eq!(resolve(text, Version::V1_2), Some(core), "{text}");
        }
        assert_eq!(resolve(".inf", Version::V1_2), None);
    }
}
