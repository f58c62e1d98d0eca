//! The grammar of a line: conditions, a prefix, a command, its words, `&`.

use std::fmt;

/// The expected result of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expect {
    /// It must succeed.
    #[default]
    Success,
    /// `!`: it must fail.
    Failure,
    /// `?`: it may do either.
    Either,
    /// `*`: the section is retried until it succeeds.
    EventualSuccess,
    /// `!*`: the section is retried until it fails.
    EventualFailure,
}

impl Expect {
    /// Whether the section is retried when the command does not end as expected.
    pub fn retries(self) -> bool {
        matches!(self, Expect::EventualSuccess | Expect::EventualFailure)
    }

    /// Whether the command should fail.
    pub fn failure(self) -> bool {
        matches!(self, Expect::Failure | Expect::EventualFailure)
    }

    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "!" => Expect::Failure,
            "?" => Expect::Either,
            "*" => Expect::EventualSuccess,
            "!*" => Expect::EventualFailure,
            _ => return None,
        })
    }
}

/// `[tag]`, `[!tag]`, `[prefix:suffix]`: the line runs only if this holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// False for `[!tag]`.
    pub wanted: bool,
    /// The name of the condition.
    pub name: String,
    /// The text after its colon.
    pub suffix: Option<String>,
}

/// A part of a word. Variables are expanded in parts that are not quoted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The text, quotes removed.
    pub text: String,
    /// Whether it was quoted.
    pub quoted: bool,
}

/// An argument as written: adjacent pieces.
pub type Word = Vec<Piece>;

/// A line with a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// All must hold.
    pub guards: Vec<Guard>,
    /// The expected result.
    pub expect: Expect,
    /// The name of the command.
    pub command: String,
    /// Its arguments.
    pub words: Vec<Word>,
    /// Whether it runs in the background.
    pub background: bool,
}

/// The syntax error of a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// A quote is not closed.
    #[error("unterminated quoted argument")]
    Unterminated,
    /// The line has two of `!`, `?`, `*`, `!*`.
    #[error("duplicated '!', '?', '*' or '!*' token")]
    TwoPrefixes,
    /// `[]` or `[!]`.
    #[error("empty condition")]
    EmptyCondition,
    /// Conditions or a prefix are not followed by a command; a quoted word is no command.
    #[error("missing command")]
    MissingCommand,
}

impl Line {
    /// Parses a line; `None` if it is blank or a comment.
    pub fn parse(text: &str) -> Result<Option<Line>, LineError> {
        let mut line = Line::default();
        let mut any = false;
        for word in words(text)? {
            any = true;
            if line.command.is_empty() {
                line.begin(&word)?;
            } else {
                line.words.push(word);
            }
        }
        if line.command.is_empty() {
            return if any { Err(LineError::MissingCommand) } else { Ok(None) };
        }
        line.background = line.words.pop_if(|last| bare(last) == Some("&")).is_some();
        Ok(Some(line))
    }

    /// Handles a word before the arguments: a condition, a prefix or the command.
    fn begin(&mut self, word: &Word) -> Result<(), LineError> {
        let Some(text) = bare(word) else {
            return Err(LineError::MissingCommand);
        };
        if let Some(expect) = Expect::parse(text) {
            if self.expect != Expect::Success {
                return Err(LineError::TwoPrefixes);
            }
            self.expect = expect;
        } else if let Some(tag) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            let tag = tag.trim();
            let (wanted, tag) = match tag.strip_prefix('!') {
                Some(tag) => (false, tag.trim()),
                None => (true, tag),
            };
            if tag.is_empty() {
                return Err(LineError::EmptyCondition);
            }
            let (name, suffix) = match tag.split_once(':') {
                Some((name, suffix)) => (name, Some(suffix.to_owned())),
                None => (tag, None),
            };
            self.guards.push(Guard { wanted, name: name.to_owned(), suffix });
        } else {
            self.command = text.to_owned();
        }
        Ok(())
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.suffix {
            Some(suffix) => write!(f, "{}:{suffix}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

fn bare(word: &Word) -> Option<&str> {
    match word.as_slice() {
        [Piece { text, quoted: false }] => Some(text),
        _ => None,
    }
}

/// Returns the text of a word without expansion.
pub(crate) fn joined(word: &Word) -> String {
    word.iter().map(|piece| piece.text.as_str()).collect()
}

const SEPARATORS: &[char] = &[' ', '\t', '\r', '\n', '#'];

/// Splits a line into words.
fn words(line: &str) -> Result<Vec<Word>, LineError> {
    let (mut words, mut word) = (vec![], Word::new());
    let mut rest = line;
    loop {
        if let Some(quoted) = rest.strip_prefix('\'') {
            let (text, after) = quoted_piece(quoted)?;
            word.push(Piece { text, quoted: true });
            rest = after;
            continue;
        }
        let end = rest.find(|c| c == '\'' || SEPARATORS.contains(&c)).unwrap_or(rest.len());
        if end > 0 {
            word.push(Piece { text: rest[..end].to_owned(), quoted: false });
            rest = &rest[end..];
            continue;
        }
        if !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        match rest.chars().next() {
            None | Some('#') => return Ok(words),
            Some(separator) => rest = &rest[separator.len_utf8()..],
        }
    }
}

/// Returns the text up to the closing quote, where two quotes stand for one, and the rest.
fn quoted_piece(mut rest: &str) -> Result<(String, &str), LineError> {
    let mut text = String::new();
    loop {
        let (before, after) = rest.split_once('\'').ok_or(LineError::Unterminated)?;
        text.push_str(before);
        match after.strip_prefix('\'') {
            Some(after) => {
                text.push('\'');
                rest = after;
            }
            None => return Ok((text, after)),
        }
    }
}

/// Returns the words in the syntax of a line, quoted where needed.
pub(crate) fn quote_all(words: &[String]) -> String {
    words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

fn quote(word: &str) -> String {
    if word.contains('\'') || word.contains(SEPARATORS) {
        format!("'{}'", word.replace('\'', "''"))
    } else {
        word.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(text: &str) -> Line {
        Line::parse(text).unwrap().unwrap()
    }

    fn texts(line: &Line) -> Vec<String> {
        line.words.iter().map(joined).collect()
    }

    #[test]
    fn words_are_split_and_quotes_join() {
        let line = line("echo  a'b c'$D 'it''s' \"x\\y\"\t''\r# comment 'open");
        assert_eq!(texts(&line), ["ab c$D", "it's", "\"x\\y\"", ""]);
        let piece = |text: &str, quoted| Piece { text: text.into(), quoted };
        assert_eq!(line.words[0], [piece("a", false), piece("b c", true), piece("$D", false)]);
    }

    #[test]
    fn conditions_and_prefixes_come_first() {
        let line = line("[a] !* [!b:c] cmd [x] ! &");
        assert_eq!((line.command.as_str(), line.expect), ("cmd", Expect::EventualFailure));
        assert!(line.background && line.guards[0].wanted && !line.guards[1].wanted);
        assert_eq!(line.guards[1].to_string(), "b:c");
        assert_eq!(texts(&line), ["[x]", "!"]);
        assert_eq!(Line::parse(" \t # x"), Ok(None));
    }

    #[test]
    fn a_quoted_ampersand_is_an_argument() {
        let line = line("sleep '&'");
        assert!(!line.background);
        assert_eq!(texts(&line), ["&"]);
    }

    #[test]
    fn syntax_errors_are_reported() {
        for (text, fault) in [
            ("echo 'a", LineError::Unterminated),
            ("! ? a", LineError::TwoPrefixes),
            ("[!] a", LineError::EmptyCondition),
            ("[] a", LineError::EmptyCondition),
            ("! [a]", LineError::MissingCommand),
            ("'echo' a", LineError::MissingCommand),
            ("''", LineError::MissingCommand),
        ] {
            assert_eq!(Line::parse(text), Err(fault), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_line_or_an_error(text in "[a\\[\\]!?*&' #\t:$é]{0,40}") {
            let _either = Line::parse(&text);
        }

        #[test]
        fn quoted_words_are_parsed_back(words in prop::collection::vec("[a' #\t\n&$é!\\[]{1,6}", 0..6)) {
            let again = line(&format!("cmd {} end", quote_all(&words)));
            let mut read = texts(&again);
            prop_assert_eq!(read.pop(), Some("end".to_owned()));
            prop_assert_eq!(read, words);
        }
    }
}
