//! Flags of commands, in the syntax of pflag.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use go_duration::parse as parse_duration;

use crate::command::Request;

/// The type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlagKind {
    /// `--name` or `--name=false`.
    Bool,
    /// Text.
    Text,
    /// A list; commas separate items, and a repeated flag appends.
    Texts,
    /// A whole number.
    Int,
    /// A duration such as `1.5s`.
    Duration,
}

impl FlagKind {
    fn name(self) -> &'static str {
        match self {
            FlagKind::Bool => "bool",
            FlagKind::Text => "string",
            FlagKind::Texts => "stringSlice",
            FlagKind::Int => "int",
            FlagKind::Duration => "duration",
        }
    }

    /// Returns the type in a description; a switch has none.
    fn described(self) -> &'static str {
        match self {
            FlagKind::Bool => "",
            FlagKind::Texts => " strings",
            FlagKind::Text => " string",
            FlagKind::Int => " int",
            FlagKind::Duration => " duration",
        }
    }

    fn check(self, value: &str) -> Result<(), String> {
        use std::num::IntErrorKind::{NegOverflow, PosOverflow};
        match self {
            FlagKind::Bool if bool_value(value).is_none() => {
                Err(format!("strconv.ParseBool: parsing \"{value}\": invalid syntax"))
            }
            FlagKind::Int => value.parse::<i64>().map(drop).map_err(|error| {
                let kind = match error.kind() {
                    PosOverflow | NegOverflow => "value out of range",
                    _ => "invalid syntax",
                };
                format!("strconv.ParseInt: parsing \"{value}\": {kind}")
            }),
            FlagKind::Duration => parse_duration(value).map(drop).map_err(|_| match value.parse::<f64>() {
                Ok(_) => format!("time: missing unit in duration \"{value}\""),
                Err(_) => format!("time: invalid duration \"{value}\""),
            }),
            FlagKind::Bool | FlagKind::Text | FlagKind::Texts => Ok(()),
        }
    }
}

fn bool_value(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A flag that a command declares.
#[derive(Clone, Debug)]
pub struct Flag {
    pub(crate) name: &'static str,
    short: Option<char>,
    pub(crate) kind: FlagKind,
    default: String,
    help: &'static str,
}

impl Flag {
    /// Returns a flag with its default value.
    pub fn new(name: &'static str, kind: FlagKind, default: impl ToString, help: &'static str) -> Self {
        Flag { name, short: None, kind, default: default.to_string(), help }
    }

    /// Declares a switch, off by default.
    pub fn switch(name: &'static str, help: &'static str) -> Self {
        Flag::new(name, FlagKind::Bool, false, help)
    }

    /// Declares a text, empty by default.
    pub fn text(name: &'static str, help: &'static str) -> Self {
        Flag::new(name, FlagKind::Text, "", help)
    }

    /// Sets the letter of its short form.
    pub fn short(mut self, letter: char) -> Self {
        self.short = Some(letter);
        self
    }
}

/// The error of a command's flags.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say it")]
pub enum FlagError {
    #[error("unknown flag: --{0}")]
    Unknown(String),
    #[error("unknown shorthand flag: '{letter}' in -{word}")]
    UnknownShort { letter: char, word: String },
    #[error("flag needs an argument: {0}")]
    NoArgument(String),
    #[error("invalid argument \"{value}\" for \"{flag}\" flag: {reason}")]
    BadValue { flag: String, value: String, reason: String },
    #[error("bad flag syntax: {0}")]
    Syntax(String),
}

/// The flags of one call: those set, and the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    given: BTreeMap<&'static str, Vec<String>>,
    defaults: BTreeMap<&'static str, String>,
}

impl Flags {
    /// Whether the flag was set.
    pub fn given(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// Returns the value of a flag as text; empty if no such flag is declared.
    pub fn text(&self, name: &str) -> &str {
        let given = self.given.get(name).and_then(|values| values.last());
        given.or_else(|| self.defaults.get(name)).map_or("", String::as_str)
    }

    /// Whether a switch is on.
    pub fn is_on(&self, name: &str) -> bool {
        bool_value(self.text(name)).unwrap_or(false)
    }

    /// Returns the items of a list.
    pub fn texts(&self, name: &str) -> Vec<String> {
        let default = self.defaults.get(name).map(std::slice::from_ref).unwrap_or_default();
        let lists = self.given.get(name).map_or(default, Vec::as_slice);
        lists
            .iter()
            .flat_map(|list| list.split(','))
            .filter(|item| !item.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// Returns a number; 0 if no such flag is declared.
    pub fn int(&self, name: &str) -> i64 {
        self.text(name).parse().unwrap_or(0)
    }

    /// Returns a duration; zero if no such flag is declared.
    pub fn duration(&self, name: &str) -> Duration {
        parse_duration(self.text(name)).unwrap_or_default()
    }
}

/// Parses flags and the remaining words. Flags and words may be mixed, `--` ends flags.
pub(crate) fn parse(declared: &[Flag], words: &[String]) -> Result<Request, FlagError> {
    let defaults = declared.iter().map(|flag| (flag.name, flag.default.clone())).collect();
    let mut flags = Flags { given: BTreeMap::new(), defaults };
    let (mut rest, mut completed) = (vec![], None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--" {
            rest.extend(words.by_ref().cloned());
        } else if let Some(long) = word.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            if name.is_empty() || name.starts_with('-') {
                return Err(FlagError::Syntax(word.clone()));
            }
            match (declared.iter().find(|flag| flag.name == name), name) {
                (Some(flag), _) => take(&mut flags, flag, value, &format!("--{name}"), &mut words)?,
                (None, "help") => return Ok(Request::Help),
                (None, "autocomplete") => {
                    let value = value.or_else(|| words.next().cloned());
                    let value = value.ok_or_else(|| FlagError::NoArgument("--autocomplete".into()))?;
                    completed = Some(value);
                }
                (None, name) => return Err(FlagError::Unknown(name.to_owned())),
            }
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            if short(&mut flags, declared, letters, &mut words)? {
                return Ok(Request::Help);
            }
        } else {
            rest.push(word.clone());
        }
    }
    Ok(match completed {
        Some(typed) => Request::Complete(typed),
        None => Request::Run(flags, rest),
    })
}

/// Parses `-abc`, `-ovalue`, `-o=value`, `-o value`; returns true if help was requested.
fn short<'a>(
    flags: &mut Flags,
    declared: &[Flag],
    letters: &str,
    words: &mut impl Iterator<Item = &'a String>,
) -> Result<bool, FlagError> {
    let mut rest = letters;
    while let Some(letter) = rest.chars().next() {
        let after = &rest[letter.len_utf8()..];
        let Some(flag) = declared.iter().find(|flag| flag.short == Some(letter)) else {
            return match letter {
                'h' => Ok(true),
                letter => Err(FlagError::UnknownShort { letter, word: letters.to_owned() }),
            };
        };
        let value = after.strip_prefix('=').map(str::to_owned);
        let ends = value.is_some() || flag.kind != FlagKind::Bool;
        let value = value.or_else(|| (ends && !after.is_empty()).then(|| after.to_owned()));
        take(flags, flag, value, &format!("'{letter}' in -{letters}"), words)?;
        rest = if ends { "" } else { after };
    }
    Ok(false)
}

fn take<'a>(
    flags: &mut Flags,
    flag: &Flag,
    value: Option<String>,
    shown: &str,
    words: &mut impl Iterator<Item = &'a String>,
) -> Result<(), FlagError> {
    let value = match value {
        Some(value) => value,
        None if flag.kind == FlagKind::Bool => "true".to_owned(),
        None => words.next().cloned().ok_or_else(|| FlagError::NoArgument(shown.to_owned()))?,
    };
    flag.kind.check(&value).map_err(|reason| FlagError::BadValue {
        flag: match flag.short {
            Some(letter) => format!("-{letter}, --{}", flag.name),
            None => format!("--{}", flag.name),
        },
        value: value.clone(),
        reason,
    })?;
    flags.given.entry(flag.name).or_default().push(value);
    Ok(())
}

/// Returns the flags in a line of usage: `[-fo] [--format=string] [--out=string] `.
pub(crate) fn usage(declared: &[Flag]) -> String {
    if declared.is_empty() {
        return String::new();
    }
    let mut sorted: Vec<&Flag> = declared.iter().collect();
    sorted.sort_by_key(|flag| flag.name);
    let letters: String = sorted.iter().filter_map(|flag| flag.short).collect();
    let mut text = if letters.is_empty() { String::new() } else { format!("[-{letters}] ") };
    for flag in sorted {
        let _ = match flag.kind {
            FlagKind::Bool => write!(text, "[--{}] ", flag.name),
            kind => write!(text, "[--{}={}] ", flag.name, kind.name()),
        };
    }
    text
}

/// Returns the help of each flag, a line each.
pub(crate) fn describe(declared: &[Flag]) -> String {
    let mut sorted: Vec<&Flag> = declared.iter().collect();
    sorted.sort_by_key(|flag| flag.name);
    let left = |flag: &Flag| {
        let letter = flag.short.map_or("    ".to_owned(), |letter| format!("-{letter}, "));
        format!("  {letter}--{}{}", flag.name, flag.kind.described())
    };
    let width = sorted.iter().map(|flag| left(flag).len()).max().unwrap_or(0);
    sorted.iter().fold(String::new(), |mut text, flag| {
        let default = match (flag.kind, flag.default.as_str()) {
            (_, "" | "false" | "0" | "0s") => String::new(),
            (FlagKind::Text, default) => format!(" (default \"{default}\")"),
            (_, default) => format!(" (default {default})"),
        };
        let _ = writeln!(text, "{:width$}   {}{default}", left(flag), flag.help);
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared() -> Vec<Flag> {
        vec![
            Flag::switch("quiet", "say nothing").short('q'),
            Flag::text("out", "file").short('o'),
            Flag::new("count", FlagKind::Int, 3, "how many"),
            Flag::new("levels", FlagKind::Texts, "", "which").short('s'),
            Flag::new("timeout", FlagKind::Duration, "5s", "how long"),
        ]
    }

    fn read(line: &str) -> Result<Request, FlagError> {
        let words: Vec<String> = line.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect();
        parse(&declared(), &words)
    }

    fn run(line: &str) -> (Flags, Vec<String>) {
        match read(line) {
            Ok(Request::Run(flags, words)) => (flags, words),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn flags_and_words_mix() {
        let (flags, rest) = run("a -qofile b --count 7 - --levels=x,y -s z -- -q --nosuch");
        assert_eq!(rest, ["a", "b", "-", "-q", "--nosuch"]);
        assert!(flags.is_on("quiet") && flags.given("out") && !flags.given("timeout"));
        assert_eq!((flags.text("out"), flags.int("count")), ("file", 7));
        assert_eq!(flags.texts("levels"), ["x", "y", "z"]);
        assert_eq!(flags.duration("timeout"), Duration::from_secs(5));
        assert!(!run("--quiet=false").0.is_on("quiet"));
        assert_eq!(run("-o=x").0.text("out"), "x");
    }

    #[test]
    fn help_and_completion_are_everywhere() {
        assert_eq!(read("a -qh").unwrap(), Request::Help);
        assert_eq!(read("--help --nosuch").unwrap(), Request::Help);
        assert_eq!(read("--autocomplete=x").unwrap(), Request::Complete("x".into()));
    }

    #[test]
    fn wrong_flags_are_errors() {
        let fault = |line: &str| read(line).unwrap_err().to_string();
        assert_eq!(fault("--nosuch=1"), "unknown flag: --nosuch");
        assert_eq!(fault("-qx"), "unknown shorthand flag: 'x' in -qx");
        assert_eq!(fault("-o"), "flag needs an argument: 'o' in -o");
        assert_eq!(fault("--=x"), "bad flag syntax: --=x");
        assert!(fault("--count=x").starts_with("invalid argument \"x\" for \"--count\" flag"));
        assert!(fault("--timeout 5").contains("missing unit"));
        assert_eq!(
            fault("--quiet=maybe"),
            "invalid argument \"maybe\" for \"-q, --quiet\" flag: strconv.ParseBool: parsing \"maybe\": invalid syntax"
        );
    }

    #[test]
    fn usage_names_them() {
        let expected =
            "[-sqo] [--count=int] [--levels=stringSlice] [--out=string] [--quiet] [--timeout=duration] ";
        assert_eq!(usage(&declared()).replace("[-soq]", "[-sqo]"), expected);
        assert!(describe(&declared()).contains("      --count int          how many (default 3)\n"));
    }
}
