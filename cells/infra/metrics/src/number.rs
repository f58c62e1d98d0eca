//! Numbers in the formats of Go's tools, as scripts compare the output.

/// Formats a number as `%f`: six digits after the decimal point.
pub(crate) fn fixed(value: f64) -> String {
    odd(value).map_or_else(|| format!("{value:.6}"), str::to_owned)
}

/// Formats a number with four significant digits and an SI prefix: `12.35k`.
pub(crate) fn pretty(value: f64) -> String {
    let (unit, factor) = unit(value);
    format!("{}{unit}", four_digits(value * factor))
}

/// Returns the SI prefix for a number, and the factor to multiply the number with.
pub(crate) fn unit(value: f64) -> (&'static str, f64) {
    match value.abs() {
        0.0 => ("", 1.0),
        v if v > 1e12 => ("T", 1e-12),
        v if v > 1e9 => ("G", 1e-9),
        v if v > 1e6 => ("M", 1e-6),
        v if v > 1e3 => ("k", 1e-3),
        v if v < 1e-9 => ("p", 1e12),
        v if v < 1e-6 => ("n", 1e9),
        v if v < 1e-3 => ("\u{b5}", 1e6),
        v if v < 1.0 => ("m", 1e3),
        _ => ("", 1.0),
    }
}

/// Formats a number as `%.4g`.
fn four_digits(value: f64) -> String {
    if let Some(odd) = odd(value) {
        return odd.to_owned();
    }
    let scientific = format!("{value:.3e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..4).contains(&exponent) {
        let digits = usize::try_from(3 - exponent).unwrap_or(0);
        trimmed(&format!("{value:.digits$}")).to_owned()
    } else {
        format!("{}{}", trimmed(mantissa), padded(exponent))
    }
}

/// Formats a number as Go's JSON encoder: shortest digits, an exponent below 1e-6 and from 1e21 on.
pub(crate) fn json(value: f64) -> String {
    in_json(value, value.to_string(), format!("{value:e}"))
}

/// Formats as [`json`], with the shortest digits that identify an `f32`.
pub(crate) fn json_short(value: f32) -> String {
    in_json(value.into(), value.to_string(), format!("{value:e}"))
}

fn in_json(value: f64, plain: String, scientific: String) -> String {
    match value.abs() {
        // JSON has neither infinities nor NaN: written as text they remain visible.
        _ if !value.is_finite() => format!("\"{}\"", yaml(value)),
        v if v != 0.0 && v < 1e-6 => scientific,
        v if v >= 1e21 => scientific.replace('e', "e+"),
        _ => plain,
    }
}

/// Formats a number as Go's YAML encoder: an exponent from seven digits on and below 0.0001.
pub(crate) fn yaml(value: f64) -> String {
    in_yaml(value, value.to_string(), format!("{value:e}"))
}

/// Formats as [`yaml`], with the shortest digits that identify an `f32`.
pub(crate) fn yaml_short(value: f32) -> String {
    in_yaml(value.into(), value.to_string(), format!("{value:e}"))
}

/// Formats as Go's `strconv.FormatFloat` with format g and the shortest precision.
fn in_yaml(value: f64, plain: String, scientific: String) -> String {
    if value.is_nan() {
        return ".nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value == 0.0 || (-4..6).contains(&exponent) {
        plain
    } else {
        format!("{mantissa}{}", padded(exponent))
    }
}

/// Formats an exponent with its sign and at least two digits.
fn padded(exponent: i32) -> String {
    format!("e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn trimmed(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

fn odd(value: f64) -> Option<&'static str> {
    match value {
        _ if value.is_nan() => Some("NaN"),
        f64::INFINITY => Some("+Inf"),
        f64::NEG_INFINITY => Some("-Inf"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits_and_a_prefix() {
        let shown =
            [0.01, 0.8, 0.98, 0.0, 12345.0, 1.0, 0.000_025_5, -2.5, 100.0, 1000.0, 0.999_99].map(pretty);
        assert_eq!(
            shown,
            ["10m", "800m", "980m", "0", "12.35k", "1", "25.5\u{b5}", "-2.5", "100", "1000", "1000m"]
        );
        assert_eq!([1.844_674_4e19, f64::NAN, 3e-10].map(pretty), ["1.845e+07T", "NaN", "300p"]);
    }

    #[test]
    fn formats_differ_in_when_they_have_an_exponent() {
        let values = [0.0, 1.0, 0.8, 123_456.0, 1_234_567.0, 6.038e-5, 1.5e-7, 1e21, -4e6];
        assert_eq!(
            values.map(json),
            ["0", "1", "0.8", "123456", "1234567", "0.00006038", "1.5e-7", "1e+21", "-4000000"]
        );
        assert_eq!(
            values.map(yaml),
            ["0", "1", "0.8", "123456", "1.234567e+06", "6.038e-05", "1.5e-07", "1e+21", "-4e+06"]
        );
        assert_eq!((json_short(1.795_317_9e9), yaml_short(0.98)), ("1795317900".into(), "0.98".into()));
        assert_eq!((yaml(f64::NAN), fixed(f64::INFINITY)), (".nan".into(), "+Inf".into()));
        assert_eq!((json(f64::INFINITY), fixed(0.5)), ("\".inf\"".into(), "0.500000".into()));
    }
}
