//! Literal defaults: a literal that its type cannot parse is a compile error.

use syn::spanned::Spanned;
use syn::{Error, Expr, Result, Type};

/// The range of Go's `time.Duration`.
const MAX_NANOSECONDS: f64 = i64::MAX as f64;

/// Rejects a default that the option's type cannot parse. Unknown types, and numbers that are not decimal, are checked
/// when the graph is planned.
pub(crate) fn check(ty: &Type, default: &Expr, text: &str) -> Result<()> {
    let Type::Path(path) = ty else { return Ok(()) };
    let Some(name) = path.path.segments.last().map(|segment| segment.ident.to_string()) else {
        return Ok(());
    };
    let fits = match name.as_str() {
        "bool" => {
            ["1", "t", "T", "true", "TRUE", "True", "0", "f", "F", "false", "FALSE", "False"].contains(&text)
        }
        "u8" => is_number::<u8>(text),
        "u16" => is_number::<u16>(text),
        "u32" => is_number::<u32>(text),
        "u64" => is_number::<u64>(text),
        "i8" => is_number::<i8>(text),
        "i16" => is_number::<i16>(text),
        "i32" => is_number::<i32>(text),
        "i64" => is_number::<i64>(text),
        "Duration" => is_duration(text),
        _ => true,
    };
    match fits {
        true => Ok(()),
        false => Err(Error::new(default.span(), format!("the default `{text}` is no {}", article(&name)))),
    }
}

fn article(name: &str) -> String {
    match name {
        "Duration" => "duration; write it as `1h30m`, `10s` or `250ms`".to_owned(),
        "bool" => "`bool`; write `true` or `false`".to_owned(),
        number => format!("`{number}`"),
    }
}

fn is_number<T: std::str::FromStr>(text: &str) -> bool {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-' || byte == b'+');
    let has_base = text.trim_start_matches(['-', '+']).starts_with('0') && text.len() > 1;
    text.parse::<T>().is_ok() || has_base && !is_decimal || text.contains('_')
}

/// Whether the text is a sequence of decimal numbers, each with a unit.
fn is_duration(text: &str) -> bool {
    let (mut rest, mut total) = (text.strip_prefix('+').unwrap_or(text), 0.0);
    if rest == "0" {
        return true;
    }
    while !rest.is_empty() {
        let number = rest.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(rest.len());
        let (digits, tail) = rest.split_at(number);
        let end = tail.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, after) = tail.split_at(end);
        let scale = match unit {
            "ns" => 1.0,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return false,
        };
        let Ok(count) = digits.parse::<f64>() else { return false };
        total += count * scale;
        rest = after;
    }
    !text.is_empty() && total <= MAX_NANOSECONDS
}
