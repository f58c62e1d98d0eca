//! The types of options and how their values are written.

use std::fmt;

use figment::value::{Num, Value};

use super::{format_duration, parse_duration};

/// The type of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false` in any of Go's spellings.
    Bool,
    /// A signed integer with this number of bits.
    Int(u32),
    /// An unsigned integer with this number of bits.
    Uint(u32),
    /// A number with a fraction.
    Float,
    /// A duration in Go's syntax.
    Duration,
    /// Any text.
    Text,
    /// Texts separated by commas.
    Strings,
    /// `a=b,c=d`, or a JSON object.
    Map,
    /// A text with an inner form, described in words: `a CIDR`.
    Parsed(&'static str),
}

/// How strictly a raw value is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// On the command line.
    Flag,
    /// Anywhere else: a bare number is a duration in nanoseconds, blanks separate texts if no comma does.
    Other,
}

impl Kind {
    /// Returns the kind that Go's flag library pflag calls by this name: `bool`, `int`, `stringToString`, ...
    pub fn from_name(name: &str) -> Option<Kind> {
        Some(match name {
            "bool" => Kind::Bool,
            "int" | "int64" => Kind::Int(64),
            "int32" => Kind::Int(32),
            "uint" | "uint64" => Kind::Uint(64),
            "uint32" => Kind::Uint(32),
            "uint16" => Kind::Uint(16),
            "uint8" => Kind::Uint(8),
            "float" | "float32" | "float64" => Kind::Float,
            "duration" => Kind::Duration,
            "string" => Kind::Text,
            "strings" | "stringSlice" => Kind::Strings,
            "map" | "stringToString" => Kind::Map,
            _ => return None,
        })
    }

    /// Returns the name of the kind in the help text.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Bool => "bool",
            Kind::Int(_) => "int",
            Kind::Uint(16) => "uint16",
            Kind::Uint(32) => "uint32",
            Kind::Uint(8) => "uint8",
            Kind::Uint(_) => "uint",
            Kind::Float => "float",
            Kind::Duration => "duration",
            Kind::Text | Kind::Parsed(_) => "string",
            Kind::Strings => "strings",
            Kind::Map => "stringToString",
        }
    }

    /// Returns the value of an option that is not set, as it would be written.
    pub(crate) fn zero(&self) -> &'static str {
        match self {
            Kind::Bool => "false",
            Kind::Int(_) | Kind::Uint(_) | Kind::Float => "0",
            Kind::Duration => "0s",
            Kind::Text | Kind::Strings | Kind::Map | Kind::Parsed(_) => "",
        }
    }

    /// Returns a description of valid values.
    pub fn expected(&self) -> String {
        match self {
            Kind::Bool => "a bool (true, false, 1, 0, t, f)".to_owned(),
            Kind::Int(64) => "an integer".to_owned(),
            Kind::Int(bits) => format!("an integer of {bits} bits"),
            Kind::Uint(bits) => format!("an integer from 0 to {}", max_uint(*bits)),
            Kind::Float => "a number".to_owned(),
            Kind::Duration => "a duration (such as 300ms, 30s, 1h15m)".to_owned(),
            Kind::Text => "a text".to_owned(),
            Kind::Strings => "a list separated by commas".to_owned(),
            Kind::Map => "a list of key=value separated by commas, or a JSON object".to_owned(),
            Kind::Parsed(what) => (*what).to_owned(),
        }
    }

    /// Parses a value; the error is the parser's message if it adds detail to [`expected`](Kind::expected).
    pub(crate) fn parse(&self, raw: &str, form: Form) -> Result<Value, Option<String>> {
        match self {
            Kind::Bool => parse_bool(raw).map(Value::from).ok_or(None),
            Kind::Int(bits) => parse_int(raw, *bits).map(Value::from).ok_or(None),
            Kind::Uint(bits) => parse_uint(raw, *bits).map(Value::from).ok_or(None),
            Kind::Float => {
                raw.trim().parse().ok().filter(|n: &f64| n.is_finite()).map(Value::from).ok_or(None)
            }
            Kind::Duration => {
                let bare = form == Form::Other && !raw.is_empty() && raw.bytes().all(|b| b.is_ascii_digit());
                let text = if bare { format!("{raw}ns") } else { raw.to_owned() };
                let duration = parse_duration(&text).map_err(|error| Some(error.to_string()))?;
                Ok(Value::from(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
            }
            Kind::Text | Kind::Parsed(_) => Ok(Value::from(raw)),
            Kind::Strings => split_list(raw, form).map(texts).map_err(Some),
            Kind::Map => split_map(raw).map(texts).map_err(Some),
        }
    }

    /// Writes a value in a form that parses to the same value.
    pub(crate) fn render(&self, value: &Value) -> String {
        match (self, value) {
            (Kind::Duration, Value::Num(_, number)) => {
                let nanos = number.to_u128().and_then(|n| u64::try_from(n).ok()).unwrap_or_default();
                format_duration(std::time::Duration::from_nanos(nanos))
            }
            // Without quotes a list of one text with blanks would be parsed as a list of words.
            (Kind::Strings, Value::Array(_, items)) if items.len() == 1 && has_blanks(&items[0]) => {
                let text = plain(value);
                if text.contains([',', '"']) { text } else { format!("\"{text}\"") }
            }
            (_, value) => plain(value),
        }
    }
}

fn has_blanks(item: &Value) -> bool {
    plain(item).contains(char::is_whitespace)
}

/// Returns a scalar or a list of scalars as text.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(_, text) => text.clone(),
        Value::Char(_, c) => c.to_string(),
        Value::Bool(_, b) => b.to_string(),
        Value::Num(_, Num::F32(f)) => f.to_string(),
        Value::Num(_, Num::F64(f)) => f.to_string(),
        Value::Num(_, number) => match (number.to_i128(), number.to_u128()) {
            (Some(n), _) => n.to_string(),
            (None, Some(n)) => n.to_string(),
            (None, None) => String::new(),
        },
        Value::Empty(..) => String::new(),
        Value::Array(_, items) => items.iter().map(|item| quoted(&plain(item))).collect::<Vec<_>>().join(","),
        Value::Dict(_, dict) => {
            let pairs: serde_json::Map<String, serde_json::Value> =
                dict.iter().map(|(k, v)| (k.clone(), plain(v).into())).collect();
            serde_json::Value::Object(pairs).to_string()
        }
    }
}

fn quoted(item: &str) -> String {
    // In maps a value may contain commas without quotes: a piece without `=` belongs to the value before it.
    let needs = item.contains('"') || (item.contains(',') && !item.contains('='));
    if needs { format!("\"{}\"", item.replace('"', "\"\"")) } else { item.to_owned() }
}

fn texts(items: Vec<String>) -> Value {
    Value::from(items)
}

fn max_uint(bits: u32) -> u64 {
    u64::MAX >> 64_u32.saturating_sub(bits)
}

fn parse_bool(raw: &str) -> Option<bool> {
    match raw {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Returns the digits and base of a number as Go reads it: `0x1f`, `0o17`, `017`, `0b1`, `1_000`.
fn parse_digits(raw: &str) -> Option<u64> {
    let lower = raw.to_ascii_lowercase();
    let (digits, base) = match lower.as_bytes() {
        [b'0', b'x', ..] => (&lower[2..], 16),
        [b'0', b'o', ..] => (&lower[2..], 8),
        [b'0', b'b', ..] => (&lower[2..], 2),
        [b'0', _, ..] => (&lower[1..], 8),
        _ => (&lower[..], 10),
    };
    let well_formed = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit() || b == b'_');
    if !well_formed || digits.starts_with('_') && base == 10 || digits.ends_with('_') || digits.contains("__")
    {
        return None;
    }
    u64::from_str_radix(&digits.replace('_', ""), base).ok()
}

fn parse_int(raw: &str, bits: u32) -> Option<i64> {
    let (negative, digits) = match raw.as_bytes().first()? {
        b'-' => (true, &raw[1..]),
        b'+' => (false, &raw[1..]),
        _ => (false, raw),
    };
    let magnitude = i128::from(parse_digits(digits)?);
    let value = if negative { -magnitude } else { magnitude };
    let limit = 1_i128 << (bits - 1);
    (-limit..limit).contains(&value).then_some(value as i64)
}

fn parse_uint(raw: &str, bits: u32) -> Option<u64> {
    parse_digits(raw).filter(|value| *value <= max_uint(bits))
}

/// Splits a list at commas outside of double quotes.
fn split_list(raw: &str, form: Form) -> Result<Vec<String>, String> {
    if raw.is_empty() {
        return Ok(vec![]);
    }
    if form == Form::Other && !raw.contains([',', '"']) {
        return Ok(raw.split_whitespace().map(str::to_owned).collect());
    }
    let (mut items, mut item, mut quoted) = (vec![], String::new(), false);
    let mut chars = raw.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                item.push('"');
            }
            '"' if quoted || item.is_empty() => quoted = !quoted,
            ',' if !quoted => items.push(std::mem::take(&mut item)),
            c => item.push(c),
        }
    }
    if quoted {
        return Err("a quote is not closed".to_owned());
    }
    items.push(item);
    Ok(items)
}

/// Splits `a=b,c=d`; a value may contain commas. A JSON object is taken as well. Returns `key=value` texts.
fn split_map(raw: &str) -> Result<Vec<String>, String> {
    let raw = raw.trim();
    if raw.starts_with('{') {
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(raw).map_err(|e| e.to_string())?;
        return Ok(object
            .into_iter()
            .map(|(key, value)| match value {
                serde_json::Value::String(text) => format!("{key}={text}"),
                other => format!("{key}={other}"),
            })
            .collect());
    }
    let mut pairs: Vec<String> = vec![];
    for piece in raw.split(',').filter(|_| !raw.is_empty()) {
        match pairs.last_mut() {
            _ if piece.contains('=') => pairs.push(piece.trim_start().to_owned()),
            Some(value) => {
                value.push(',');
                value.push_str(piece);
            }
            None => return Err(format!("\"{piece}\" has no =")),
        }
    }
    Ok(pairs)
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: Kind, raw: &str) -> Option<String> {
        kind.parse(raw, Form::Other).ok().map(|value| kind.render(&value))
    }

    #[test]
    fn bools_are_those_of_go() {
        for raw in ["1", "t", "T", "TRUE", "true", "True"] {
            assert_eq!(read(Kind::Bool, raw).as_deref(), Some("true"));
        }
        for raw in ["", "yes", "on", "tRUE", " true"] {
            assert_eq!(read(Kind::Bool, raw), None, "{raw}");
        }
    }

    #[test]
    fn numbers_have_bases_and_limits() {
        for (raw, value) in [("0", "0"), ("0x10", "16"), ("-5", "-5"), ("1_000", "1000"), ("010", "8")] {
            assert_eq!(read(Kind::Int(64), raw).as_deref(), Some(value), "{raw}");
        }
        assert_eq!(read(Kind::Uint(16), "65535").as_deref(), Some("65535"));
        for (kind, raw) in [
            (Kind::Uint(16), "65536"),
            (Kind::Uint(64), "-1"),
            (Kind::Int(64), ""),
            (Kind::Int(64), "5 "),
            (Kind::Int(64), "9223372036854775808"),
            (Kind::Int(32), "2147483648"),
            (Kind::Float, ""),
            (Kind::Float, "NaN"),
            (Kind::Float, "-inf"),
            (Kind::Float, "1e400"),
        ] {
            assert_eq!(read(kind, raw), None, "{kind:?} {raw}");
        }
        assert_eq!(read(Kind::Float, "0.0025").as_deref(), Some("0.0025"));
    }

    #[test]
    fn a_bare_number_is_a_duration_except_on_the_command_line() {
        assert_eq!(read(Kind::Duration, "1000000").as_deref(), Some("1ms"));
        assert!(Kind::Duration.parse("1000000", Form::Flag).is_err());
        assert!(Kind::Duration.parse("", Form::Other).is_err());
    }

    #[test]
    fn lists_and_maps() {
        let list = |raw, form| split_list(raw, form).unwrap();
        assert_eq!(list("a,b c", Form::Other), ["a", "b c"]);
        assert_eq!(list("a b", Form::Other), ["a", "b"]);
        assert_eq!(list("a b", Form::Flag), ["a b"]);
        assert_eq!(list("\"a,b\",c\"", Form::Flag), ["a,b", "c\""]);
        assert_eq!(list("", Form::Flag), Vec::<String>::new());
        assert!(split_list("\"a", Form::Flag).is_err());
        // The displayed value parses to the same value again, from any source.
        for raw in ["a b", "k8s:a=b c", "\"a b\"", "a b,c", " ", "\"a, b\""] {
            let value = Kind::Strings.parse(raw, Form::Flag).unwrap();
            let shown = Kind::Strings.render(&value);
            assert_eq!(Kind::Strings.parse(&shown, Form::Other).unwrap(), value, "{raw} is shown as {shown}");
        }
        assert_eq!(split_map("a=b,c,d=e").unwrap(), ["a=b,c", "d=e"]);
        assert_eq!(split_map("{\"a\":\"b\",\"c\":5}").unwrap(), ["a=b", "c=5"]);
        assert_eq!(split_map("").unwrap(), Vec::<String>::new());
        assert_eq!(split_map("a").unwrap_err(), "\"a\" has no =");
        assert!(split_map("{").is_err());
    }
}
