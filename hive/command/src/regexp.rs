//! Regular expressions in Go's syntax (RE2), which scripts are written in.

use regex::bytes::{Regex, RegexBuilder};

/// Compiles an expression in which `^` and `$` match at line ends.
pub fn multi_line(expression: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(&translate(expression)).multi_line(true).build()
}

/// Compiles an expression in which `^` and `$` match at the ends of the text.
pub fn whole_text(expression: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(&translate(expression)).build()
}

/// Rewrites constructs that differ between the two syntaxes: classes of letters and `\b` are ASCII in Go, `{` that
/// begins no repetition and `[`, `&&`, `--`, `~~` within brackets are literal, and Go has `\Q..\E`, octal numbers and
/// `\C`.
fn translate(expression: &str) -> String {
    let mut out = String::with_capacity(expression.len() + 16);
    let mut rest = expression;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = match c {
            '\\' => escape(after, false, &mut out),
            '[' => class(after, &mut out),
            '{' if !is_repetition(after) => {
                out.push_str("\\{");
                after
            }
            _ => {
                out.push(c);
                after
            }
        };
    }
    out
}

/// Whether the text after `{` is `n}`, `n,}` or `n,m}`.
fn is_repetition(text: &str) -> bool {
    let Some((inner, _)) = text.split_once('}') else { return false };
    let (least, most) = inner.split_once(',').unwrap_or((inner, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !least.is_empty() && digits(least) && digits(most)
}

/// Writes the escape that follows a backslash; returns the rest.
fn escape<'a>(text: &'a str, in_class: bool, out: &mut String) -> &'a str {
    let Some(c) = text.chars().next() else {
        out.push('\\');
        return "";
    };
    let after = &text[c.len_utf8()..];
    let ascii = match c {
        'd' => Some(("", "0-9")),
        'D' => Some(("^", "0-9")),
        'w' => Some(("", "0-9A-Za-z_")),
        'W' => Some(("^", "0-9A-Za-z_")),
        's' => Some(("", "\\t\\n\\f\\r ")),
        'S' => Some(("^", "\\t\\n\\f\\r ")),
        _ => None,
    };
    if let Some((negation, members)) = ascii {
        // In the crate's syntax a class within a class is a union, which is what the members of a class mean.
        out.push_str(&format!("[{negation}{members}]"));
        return after;
    }
    match c {
        'b' | 'B' if !in_class => out.push_str(&format!("(?-u:\\{c})")),
        'C' if !in_class => out.push_str("(?s-u:.)"),
        'Q' if !in_class => {
            let (literal, after) = after.split_once("\\E").unwrap_or((after, ""));
            out.push_str(&regex::escape(literal));
            return after;
        }
        '0'..='7' => {
            let length = text.bytes().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
            if c == '0' || length > 1 {
                let value =
                    text[..length].bytes().fold(0_u32, |value, byte| value * 8 + u32::from(byte - b'0'));
                out.push_str(&format!("\\x{{{value:x}}}"));
                return &text[length..];
            }
            out.push_str(&format!("\\{c}")); // a back-reference, which both syntaxes refuse
        }
        'p' | 'P' | 'x' if after.starts_with('{') => {
            let end = after.find('}').map_or(after.len(), |end| end + 1);
            out.push_str(&format!("\\{c}{}", &after[..end]));
            return &after[end..];
        }
        '<' | '>' => out.push(c),
        _ => {
            out.push('\\');
            out.push(c);
        }
    }
    after
}

/// Writes the class that follows a `[`; returns the rest.
fn class<'a>(text: &'a str, out: &mut String) -> &'a str {
    out.push('[');
    let mut rest = text;
    if let Some(after) = rest.strip_prefix('^') {
        out.push('^');
        rest = after;
    }
    if let Some(after) = rest.strip_prefix(']') {
        out.push_str("\\]");
        rest = after;
    }
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = match c {
            ']' => {
                out.push(']');
                return after;
            }
            '\\' => escape(after, true, out),
            '[' => match after.strip_prefix(':').and_then(|name| name.split_once(":]")) {
                Some((name, after)) => {
                    out.push_str(&format!("[:{name}:]"));
                    after
                }
                None => {
                    out.push_str("\\[");
                    after
                }
            },
            '&' | '~' => {
                out.push('\\');
                out.push(c);
                after
            }
            '-' if after.starts_with('-') => {
                out.push_str("-\\-");
                &after[1..]
            }
            _ => {
                out.push(c);
                after
            }
        };
    }
    rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(expression: &str, text: &str) -> bool {
        multi_line(expression).unwrap().is_match(text.as_bytes())
    }

    #[test]
    fn classes_are_ascii_and_braces_may_be_literal() {
        assert!(matches(r"^\d\w\s$", "1a ") && !matches(r"\d", "\u{663}") && !matches(r"\w", "é"));
        assert!(matches(r"^[^\s\d]+$", "ab") && matches(r"^[\W]$", "-") && !matches(r"^[^\D]$", "x"));
        assert!(
            matches(r"a{x} {", "a{x} {") && matches("^a{2}$", "aa") && matches("^a{1,}b{,2}$", "aab{,2}")
        );
        assert!(
            matches(r"\Qa.b[\E+", "a.b[[") && matches(r"a\ b\<\>", "a b<>") && matches(r"^\101\x41$", "AA")
        );
        assert!(matches(r"\bone\b", "éone") && matches(r"^.\C$", "éa"));
    }

    #[test]
    fn brackets_are_read_as_go_does() {
        assert!(matches("^[a[b]+$", "[ab") && matches("^[]a]+$", "]a") && matches("^[^]a]$", "["));
        assert!(
            matches("^[a&&b]+$", "&a&b") && matches("^[[:digit:]~~]+$", "1~") && matches("^[+--]+$", "+,-")
        );
    }

    #[test]
    fn lines_have_ends() {
        assert!(matches("^b$", "a\nb\nc") && !whole_text("^b$").unwrap().is_match(b"a\nb\nc"));
        assert!(matches("(?i)BETA", "a beta") && matches(r"\pL+\p{Greek}", "aé\u{3b1}"));
        for wrong in ["(", r"\1", "a(?=b)", "[a", r"\"] {
            assert!(multi_line(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_expression_compiles_or_not(text in r"[\\a\[\]{}&~\-:Q0-9,^$é(|)*]{0,20}") {
            let _either = multi_line(&text);
        }

        #[test]
        fn quoted_values_match_themselves(text in "[ -~é]{1,20}") {
            let whole = format!("^{}$", regex::escape(&text));
            prop_assert!(matches(&whole, &text));
        }
    }
}
