//! Errors of scripts.

use std::panic::Location;

use hive_command::FlagError;

use crate::line::LineError;

/// The place and the cause of a script's failure.
#[derive(Debug, thiserror::Error)]
#[error("{}{fault}", place(.file, *.line, .fault))]
pub struct ScriptError {
    /// The name of the script.
    pub file: String,
    /// The line number, from 1.
    pub line: usize,
    /// The cause.
    pub fault: Fault,
}

/// The file name in errors of lines that a user typed.
pub(crate) const TYPED: &str = "<stdin>";

/// The error of a typed line has no place.
fn place(file: &str, line: usize, fault: &Fault) -> String {
    match fault {
        Fault::Parse(_) | Fault::Condition(_) if file == TYPED => String::new(),
        Fault::Parse(_) => format!("{file}:{line}: parse error: "),
        _ => format!("{file}:{line}: "),
    }
}

/// The cause of a line's failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The syntax of the line is invalid.
    #[error("{0}")]
    Parse(#[from] LineError),
    /// A condition is unknown, or could not be evaluated.
    #[error("{0}")]
    Condition(String),
    /// No command has this name.
    #[error("{0}: unknown command")]
    UnknownCommand(String),
    /// The flags of a command are invalid.
    #[error("{command}: {error}")]
    Flags {
        /// The command with its arguments.
        command: String,
        /// The fault.
        error: FlagError,
    },
    /// The command cannot run in the background.
    #[error("{0}: command cannot be run in background")]
    NoBackground(String),
    /// The result of a command is not the one that its line expects.
    #[error("{command}: {}", causes(.error))]
    Command {
        /// The command with its arguments.
        command: String,
        /// The message.
        error: anyhow::Error,
    },
    /// The time limit has passed, or the script was cancelled.
    #[error("{0}")]
    Interrupted(#[from] Interrupt),
}

impl Fault {
    /// Whether a retry of the section may succeed.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Fault::Command { .. })
    }
}

/// The reason to end a script from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Interrupt {
    /// Its time limit has passed.
    #[error("context deadline exceeded")]
    Deadline,
    /// Its caller has gone.
    #[error("context canceled")]
    Cancelled,
}

/// The error of the command `stop`, which ends a script with success.
#[derive(Debug, thiserror::Error)]
#[error("stop{}{}", if .0.is_empty() { "" } else { ": " }, .0)]
pub(crate) struct Stop(pub(crate) String);

/// The error of a command that should have failed.
#[derive(Debug, thiserror::Error)]
#[error("unexpected success")]
pub(crate) struct UnexpectedSuccess;

/// Two commands or conditions of the same name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("script {what} `{name}` is there twice: {first} and {second}")]
pub struct Duplicate {
    /// `command` or `condition`.
    pub what: &'static str,
    /// The name.
    pub name: String,
    /// Where it was created first.
    pub first: &'static Location<'static>,
    /// Where it was created again.
    pub second: &'static Location<'static>,
}

/// Returns an error with its causes, without those that its message already contains.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    let mut messages = error.chain().map(|cause| match cause.downcast_ref::<std::io::Error>() {
        Some(error) => plain(error),
        None => cause.to_string(),
    });
    let mut text = messages.next().unwrap_or_default();
    for cause in messages {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Returns the system's error text: `no such file or directory`.
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    let Some(text) = error.raw_os_error().and_then(|code| text.strip_suffix(&format!(" (os error {code})")))
    else {
        return text;
    };
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}
