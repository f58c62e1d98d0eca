//! Errors of a configuration.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use super::settings::Source;

/// A value that is not of its option's type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadValue {
    /// Where it was read.
    pub from: Source,
    /// The option.
    pub key: String,
    /// The value.
    pub value: String,
    /// A description of valid values.
    pub expected: String,
    /// The parser's error, if it adds detail.
    pub detail: Option<String>,
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BadValue { from, key, value, expected, detail } = self;
        write!(f, "{from}: option {key}: \"{}\" is not {expected}", shown(value))?;
        match detail {
            Some(detail) => write!(f, " ({})", shown(detail)),
            None => Ok(()),
        }
    }
}

/// An error in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A flag on the command line that no cell declares.
    #[error("unknown flag: --{name}{}", did_you_mean(.nearest))]
    #[non_exhaustive]
    UnknownFlag {
        /// Its name.
        name: String,
        /// The name that may have been meant.
        nearest: Option<String>,
    },
    /// A word on the command line that begins with one dash.
    #[error("unknown shorthand flag: {word}")]
    #[non_exhaustive]
    UnknownShorthand {
        /// The word.
        word: String,
    },
    /// A flag at the end of the command line without its value.
    #[error("flag needs an argument: --{name}")]
    #[non_exhaustive]
    NoArgument {
        /// Its name.
        name: String,
    },
    /// A value that is not of the option's type.
    #[error("{0}")]
    BadValue(Box<BadValue>),
    /// The folder given as `--config-dir` does not exist.
    #[error("Non-existent configuration directory {}", .0.display())]
    NoDirectory(PathBuf),
    /// A file cannot be read.
    #[error("cannot read {}: {reason}", .path.display())]
    #[non_exhaustive]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A configuration file cannot be understood.
    #[error("configuration file {}: {reason}", .path.display())]
    #[non_exhaustive]
    BadFile {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// A key that is unknown, set by the program or found in a source where the program refuses unknown keys.
    #[error("{from}: unknown option {key}{}", .nearest.as_ref().map(|name| format!(" (did you mean {name}?)")).unwrap_or_default())]
    #[non_exhaustive]
    UnknownKey {
        /// The key.
        key: String,
        /// Where it was found.
        from: Source,
        /// The name that may have been meant.
        nearest: Option<String>,
    },
    /// Options that are valid individually and invalid in combination.
    #[error("{reason} (set: {})", .options.join(", "))]
    #[non_exhaustive]
    Invalid {
        /// The fault, and the remedy.
        reason: String,
        /// The options of the struct that are not at their defaults, as `name=value (source)`.
        options: Vec<String>,
    },
    /// A struct requests an option that it does not declare; only a `ConfigSpec` written by hand can do so.
    #[error("option {key} is not declared")]
    #[non_exhaustive]
    Undeclared {
        /// The option.
        key: String,
    },
}

/// The maximum length of a value, and of the parser's message, in an error, in bytes.
const SHOWN: usize = 200;

/// Returns the beginning of a text, at most `most` bytes.
pub(crate) fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// Returns a text as one line of bounded length.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    let odd = text.contains(char::is_control);
    if !odd && text.len() <= SHOWN {
        return Cow::Borrowed(text);
    }
    let cut = cut(text, SHOWN);
    let dots = if cut.len() < text.len() { format!("... ({} bytes)", text.len()) } else { String::new() };
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(cut.chars().map(escape).collect::<String>() + &dots)
}

pub(crate) fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!(" (did you mean --{name}?)")).unwrap_or_default()
}
