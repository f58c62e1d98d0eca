//! Tokens of an expression, with their places.

use crate::error::{CompileError, Place};

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// A name, or one of the words `true`, `false`, `null` and `in`.
    Word(String),
    /// The digits of an integer: a sign is an operator.
    Int(u64),
    Uint(u64),
    Double(f64),
    String(String),
    Bytes(Vec<u8>),
    /// An operator or a bracket.
    Symbol(&'static str),
    End,
}

/// Operators and brackets, the longer ones first.
const SYMBOLS: [&str; 23] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":", ".", ",", "(", ")",
    "[", "]", "{",
];

/// Splits an expression.
pub(crate) fn tokens(text: &str) -> Result<Vec<(Token, Place)>, CompileError> {
    let mut lexer = Lexer { text, at: 0 };
    let mut found = Vec::new();
    loop {
        lexer.skip_blanks();
        let place = Place(lexer.at);
        let token = lexer.token().map_err(|problem| CompileError::new(text, place, problem))?;
        let is_end = token == Token::End;
        found.push((token, place));
        if is_end {
            return Ok(found);
        }
    }
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl Lexer<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Skips blanks and comments.
    fn skip_blanks(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start_matches([' ', '\t', '\n', '\r', '\u{c}']);
            let skipped = match trimmed.strip_prefix("//") {
                Some(comment) => rest.len() - comment.find('\n').map_or(0, |end| comment.len() - end),
                None => rest.len() - trimmed.len(),
            };
            if skipped == 0 {
                return;
            }
            self.at += skipped;
        }
    }

    fn token(&mut self) -> Result<Token, String> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok(Token::End) };
        let is_fraction = first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit());
        if first.is_ascii_digit() || is_fraction {
            return self.number();
        }
        if let Some((prefix, quote)) = string_start(rest) {
            return self.string(prefix, quote);
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            let word = rest[..length].to_owned();
            self.at += length;
            return Ok(Token::Word(word));
        }
        let symbol = SYMBOLS.iter().chain(&["}"]).find(|symbol| rest.starts_with(**symbol));
        let symbol = symbol.ok_or_else(|| format!("unexpected character {first:?}"))?;
        self.at += symbol.len();
        Ok(Token::Symbol(symbol))
    }

    fn number(&mut self) -> Result<Token, String> {
        let rest = self.rest();
        let digits = |text: &str, is_digit: fn(&char) -> bool| text.chars().take_while(is_digit).count();
        if let Some(hex) = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X")) {
            let length = digits(hex, char::is_ascii_hexdigit);
            let value =
                u64::from_str_radix(&hex[..length], 16).map_err(|_| "a hexadecimal number is invalid")?;
            let is_unsigned = hex[length..].starts_with(['u', 'U']);
            self.at += 2 + length + usize::from(is_unsigned);
            return Ok(if is_unsigned { Token::Uint(value) } else { Token::Int(value) });
        }
        let mut length = digits(rest, char::is_ascii_digit);
        let mut is_double = false;
        if let Some(fraction) = rest[length..].strip_prefix('.')
            && fraction.starts_with(|c: char| c.is_ascii_digit())
        {
            is_double = true;
            length += 1 + digits(fraction, char::is_ascii_digit);
        }
        if let Some(exponent) = rest[length..].strip_prefix(['e', 'E']) {
            let sign = usize::from(exponent.starts_with(['+', '-']));
            let count = digits(&exponent[sign..], char::is_ascii_digit);
            if count == 0 {
                return Err("an exponent has no digits".to_owned());
            }
            is_double = true;
            length += 1 + sign + count;
        }
        let (number, tail) = rest.split_at(length);
        let is_unsigned = !is_double && tail.starts_with(['u', 'U']);
        let token = match is_double {
            true => Token::Double(number.parse().map_err(|_| "a number is invalid")?),
            false => {
                let value: u64 = number.parse().map_err(|_| "a number is too large")?;
                if is_unsigned { Token::Uint(value) } else { Token::Int(value) }
            }
        };
        self.at += length + usize::from(is_unsigned);
        Ok(token)
    }

    fn string(&mut self, prefix: &'static str, quote: &'static str) -> Result<Token, String> {
        self.at += prefix.len() + quote.len();
        let (is_raw, is_bytes) = (prefix.contains(['r', 'R']), prefix.contains(['b', 'B']));
        let (mut bytes, is_long) = (Vec::new(), quote.len() == 3);
        loop {
            let rest = self.rest();
            if rest.starts_with(quote) {
                self.at += quote.len();
                break;
            }
            let Some(letter) = rest.chars().next() else { return Err("a string has no end".to_owned()) };
            if letter == '\n' && !is_long {
                return Err("a line ends within a string".to_owned());
            }
            if letter == '\\' && !is_raw {
                let length = escape(&rest[1..], is_bytes, &mut bytes)?;
                self.at += 1 + length;
            } else {
                bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                self.at += letter.len_utf8();
            }
        }
        if is_bytes {
            return Ok(Token::Bytes(bytes));
        }
        String::from_utf8(bytes).map(Token::String).map_err(|_| "a string is not UTF-8".to_owned())
    }
}

/// Returns the prefix and the quote of a string.
fn string_start(text: &str) -> Option<(&'static str, &'static str)> {
    const PREFIXES: [&str; 13] = ["rb", "rB", "Rb", "RB", "br", "bR", "Br", "BR", "r", "R", "b", "B", ""];
    const QUOTES: [&str; 4] = ["\"\"\"", "'''", "\"", "'"];
    PREFIXES.iter().find_map(|prefix| {
        let rest = text.strip_prefix(prefix)?;
        Some((*prefix, *QUOTES.iter().find(|quote| rest.starts_with(**quote))?))
    })
}

/// Decodes an escape behind its backslash; returns its length.
fn escape(text: &str, is_bytes: bool, bytes: &mut Vec<u8>) -> Result<usize, String> {
    let invalid = || "an escape is invalid".to_owned();
    let first = text.chars().next().ok_or_else(invalid)?;
    let simple = match first {
        'a' => Some(7),
        'b' => Some(8),
        'f' => Some(12),
        'n' => Some(b'\n'),
        'r' => Some(b'\r'),
        't' => Some(b'\t'),
        'v' => Some(11),
        '\\' | '?' | '"' | '\'' | '`' => u8::try_from(first).ok(),
        _ => None,
    };
    if let Some(byte) = simple {
        bytes.push(byte);
        return Ok(1);
    }
    let (radix, skipped, count) = match first {
        'x' | 'X' => (16, 1, 2),
        'u' if !is_bytes => (16, 1, 4),
        'U' if !is_bytes => (16, 1, 8),
        '0'..='3' => (8, 0, 3),
        _ => return Err(invalid()),
    };
    let digits = text.get(skipped..skipped + count).ok_or_else(invalid)?;
    if !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Err(invalid());
    }
    let code = u32::from_str_radix(digits, radix).map_err(|_| invalid())?;
    // A byte in bytes, a character in strings.
    match u8::try_from(code) {
        Ok(byte) if is_bytes => bytes.push(byte),
        _ => {
            let letter = char::from_u32(code).ok_or_else(invalid)?;
            bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    Ok(skipped + count)
}
