//! Validates regular expressions as Go and RE2 do. The proxy evaluates them; here only their syntax matters.

use std::iter::Peekable;
use std::str::Chars;

/// The highest number of repetitions in `{n,m}`, also of nested ones.
const MAX_REPEAT: u32 = 1000;
/// The deepest nesting of groups.
const MAX_DEPTH: usize = 250;
/// Names of POSIX classes in `[[:name:]]`.
const POSIX: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space",
    "upper", "word", "xdigit",
];

/// Returns the error of an invalid expression.
pub(super) fn validate(text: &str) -> Result<(), &'static str> {
    let mut parser = Parser { rest: text.chars().peekable(), depth: 0 };
    parser.alternatives(1)?;
    match parser.rest.next() {
        None => Ok(()),
        Some(_) => Err("unexpected )"),
    }
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
    depth: usize,
}

impl Parser<'_> {
    /// Reads up to a closing parenthesis or the end. Returns the product of nested repetitions.
    fn alternatives(&mut self, outer: u32) -> Result<u32, &'static str> {
        let mut most = outer;
        // Whether there is an operand, and whether it has an operator already: `a**` is an error, `a*?` is not.
        let (mut operand, mut repeated) = (None, false);
        while let Some(next) = self.rest.peek().copied() {
            if next == ')' {
                break;
            }
            self.rest.next();
            let repeat = match next {
                '*' | '+' | '?' => Some(1),
                '{' => self.counts()?,
                _ => None,
            };
            if let Some(repeat) = repeat {
                let Some(inner) = operand else { return Err("missing argument to repetition operator") };
                if repeated {
                    return Err("invalid nested repetition operator");
                }
                let product = repeat.max(1) * inner;
                if product > MAX_REPEAT {
                    return Err("invalid repeat count");
                }
                self.rest.next_if_eq(&'?');
                (operand, repeated) = (Some(product), true);
                most = most.max(product);
                continue;
            }
            repeated = false;
            operand = Some(match next {
                '|' => {
                    operand = None;
                    continue;
                }
                '(' => match self.group()? {
                    Some(inner) => inner,
                    // Flags alone are not an operand.
                    None => {
                        operand = None;
                        continue;
                    }
                },
                '[' => self.class().map(|()| 1)?,
                '\\' => self.escape(false).map(|_| 1)?,
                _ => 1,
            });
            most = most.max(operand.unwrap_or(1));
        }
        Ok(most)
    }

    /// Reads `n}`, `n,}` or `n,m}`; `None` if the brace is a literal.
    fn counts(&mut self) -> Result<Option<u32>, &'static str> {
        let ahead: String = self.rest.clone().take_while(|c| *c != '}').collect();
        let closed = self.rest.clone().any(|c| c == '}');
        let (first, last) = ahead.split_once(',').unwrap_or((&ahead, &ahead));
        let is_number = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|b| b.is_ascii_digit())
                && (text == "0" || !text.starts_with('0'))
        };
        if !closed || !is_number(first) || !(last.is_empty() || is_number(last)) {
            return Ok(None);
        }
        let number = |text: &str| text.parse::<u32>().unwrap_or(u32::MAX);
        let (low, high) = (number(first), if last.is_empty() { number(first) } else { number(last) });
        if low > high || high > MAX_REPEAT {
            return Err("invalid repeat count");
        }
        self.rest.by_ref().take(ahead.chars().count() + 1).for_each(drop);
        Ok(Some(high))
    }

    /// Reads a group; `None` for flags such as `(?i)`.
    fn group(&mut self) -> Result<Option<u32>, &'static str> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("expression nests too deeply");
        }
        if self.rest.next_if_eq(&'?').is_some() {
            let head: String = self.rest.clone().take_while(|c| !matches!(c, ')' | ':' | '>')).collect();
            self.rest.by_ref().take(head.chars().count()).for_each(drop);
            let name = head.strip_prefix("P<").or_else(|| head.strip_prefix('<'));
            match (name, self.rest.next()) {
                (Some(name), Some('>')) if is_group_name(name) => {}
                (None, Some(end @ (':' | ')'))) if are_flags(&head, end) => {
                    if end == ')' {
                        self.depth -= 1;
                        return Ok(None);
                    }
                }
                (Some(_), _) => return Err("invalid named capture"),
                _ => return Err("invalid or unsupported Perl syntax"),
            }
        }
        let inner = self.alternatives(1)?;
        self.depth -= 1;
        self.rest.next_if_eq(&')').map(|_| Some(inner)).ok_or("missing closing )")
    }

    /// Reads a class up to its closing bracket.
    fn class(&mut self) -> Result<(), &'static str> {
        self.rest.next_if_eq(&'^');
        let mut first = true;
        loop {
            let next = self.rest.next().ok_or("missing closing ]")?;
            if next == ']' && !first {
                return Ok(());
            }
            first = false;
            if next == '[' && self.rest.peek() == Some(&':') {
                let rest: String = self.rest.clone().skip(1).collect();
                if let Some((name, _)) = rest.split_once(":]") {
                    if !POSIX.contains(&name.strip_prefix('^').unwrap_or(name)) {
                        return Err("invalid character class range");
                    }
                    self.rest.by_ref().take(name.chars().count() + 3).for_each(drop);
                    continue;
                }
            }
            let Some(low) = self.in_class(next)? else { continue };
            let mut ahead = self.rest.clone();
            if ahead.next() == Some('-') && ahead.next().is_some_and(|c| c != ']') {
                self.rest.next();
                let next = self.rest.next().ok_or("missing closing ]")?;
                match self.in_class(next)? {
                    Some(high) if low <= high => {}
                    _ => return Err("invalid character class range"),
                }
            }
        }
    }

    fn in_class(&mut self, next: char) -> Result<Option<char>, &'static str> {
        if next == '\\' { self.escape(true) } else { Ok(Some(next)) }
    }

    /// Reads an escape after its backslash. Returns the character; `None` for a class or a position.
    fn escape(&mut self, in_class: bool) -> Result<Option<char>, &'static str> {
        let next = self.rest.next().ok_or("trailing backslash at end of expression")?;
        match next {
            'd' | 'D' | 's' | 'S' | 'w' | 'W' => Ok(None),
            'A' | 'b' | 'B' | 'C' | 'z' if !in_class => Ok(None),
            'Q' if !in_class => {
                let quoted: String = self.rest.clone().collect();
                let length =
                    quoted.split_once("\\E").map_or(usize::MAX, |(text, _)| text.chars().count() + 2);
                self.rest.by_ref().take(length).for_each(drop);
                Ok(None)
            }
            'p' | 'P' => self.unicode_class().map(|()| None),
            'x' => self.hexadecimal().map(Some),
            '0'..='7' => {
                let digits: String = self.rest.clone().take(2).take_while(|c| c.is_digit(8)).collect();
                // Backreferences do not exist; a single digit other than 0 would be one.
                if next != '0' && digits.is_empty() {
                    return Err("invalid escape sequence");
                }
                self.rest.by_ref().take(digits.len()).for_each(drop);
                Ok(u32::from_str_radix(&format!("{next}{digits}"), 8).ok().and_then(char::from_u32))
            }
            'a' => Ok(Some('\u{7}')),
            'f' => Ok(Some('\u{c}')),
            'v' => Ok(Some('\u{b}')),
            'n' => Ok(Some('\n')),
            'r' => Ok(Some('\r')),
            't' => Ok(Some('\t')),
            other if other.is_ascii_punctuation() && other != '_' => Ok(Some(other)),
            _ => Err("invalid escape sequence"),
        }
    }

    /// Reads `L`, `{Greek}` or `{^Greek}` after `\p`. Names are not compared with Unicode's list.
    fn unicode_class(&mut self) -> Result<(), &'static str> {
        match self.rest.next() {
            Some('{') => {
                let name: String = self.rest.by_ref().take_while(|c| *c != '}').collect();
                let letters = name.strip_prefix('^').unwrap_or(&name);
                let valid =
                    !letters.is_empty() && letters.bytes().all(|b| b.is_ascii_alphabetic() || b == b'_');
                valid.then_some(()).ok_or("invalid character class range")
            }
            Some('C' | 'L' | 'M' | 'N' | 'P' | 'S' | 'Z') => Ok(()),
            _ => Err("invalid character class range"),
        }
    }

    fn hexadecimal(&mut self) -> Result<char, &'static str> {
        let digits: String = match self.rest.next_if_eq(&'{') {
            Some(_) => self.rest.by_ref().take_while(|c| *c != '}').collect(),
            None => self.rest.by_ref().take(2).collect::<String>(),
        };
        let valid = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let value = valid.then(|| u32::from_str_radix(&digits, 16).ok()).flatten();
        value.and_then(char::from_u32).ok_or("invalid escape sequence")
    }
}

fn is_group_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// Whether a text is a list of flags: some on, then some off after a dash.
fn are_flags(text: &str, end: char) -> bool {
    let (on, off) = text.split_once('-').unwrap_or((text, ""));
    let known = |flags: &str| flags.chars().all(|flag| "imsU".contains(flag));
    known(on) && known(off) && !(text.contains('-') && off.is_empty()) && (end == ':' || !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::validate;

    #[test]
    fn expressions_are_valid_as_in_go() {
        for text in [
            "",
            "/b/.*",
            "^/v[12]/(a|b)?$",
            "a{2,3}?b*?",
            "/x/{id}",
            "a{,2}a{x",
            "[]a][^]a][a-]",
            "[[:alpha:]_][[:^digit:]][[a]",
            "(?i)get|post",
            "(?P<n>a)(?<m>b)(?i-s:c)()",
            "a||b|",
            r"\d+\.\-\Q(\E*",
            r"\x{10FFFF}\x41\101\pL\p{Greek}\P{^Lu}",
            r"\Aa\b\z",
            "(a{100}){10}",
        ] {
            assert_eq!(validate(text), Ok(()), "{text}");
        }
        let operand = "missing argument to repetition operator";
        let escape = "invalid escape sequence";
        for (text, error) in [
            ("(", "missing closing )"),
            ("a)", "unexpected )"),
            ("[a", "missing closing ]"),
            ("[]", "missing closing ]"),
            ("[z-a]", "invalid character class range"),
            ("[[:alpah:]]", "invalid character class range"),
            ("*", operand),
            ("(|+a)", operand),
            ("a**", "invalid nested repetition operator"),
            ("a{2}{3}", "invalid nested repetition operator"),
            ("a{3,2}", "invalid repeat count"),
            ("a{1001}", "invalid repeat count"),
            ("(a{100}){11}", "invalid repeat count"),
            ("a\\", "trailing backslash at end of expression"),
            (r"\y", escape),
            (r"(a)\1", escape),
            (r"\x{110000}", escape),
            (r"\p{}", "invalid character class range"),
            ("(?=a)", "invalid or unsupported Perl syntax"),
            ("(?i-)", "invalid or unsupported Perl syntax"),
            ("(?P<a b>c)", "invalid named capture"),
        ] {
            assert_eq!(validate(text), Err(error), "{text}");
        }
        assert_eq!(validate(&"(".repeat(100_000)), Err("expression nests too deeply"));
    }
}
