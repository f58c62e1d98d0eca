//! Errors of the configuration and its files.

use std::io;
use std::path::PathBuf;

/// An invalid configuration, or a run folder or file that the agent cannot use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another agent holds the run folder.
    #[error("another agent{} runs on {folder}: stop it, or give this one its own --state-dir and --socket-path", pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    InUse {
        /// The run folder.
        folder: PathBuf,
        /// The other agent's pid, if the pid file has it.
        pid: Option<u32>,
    },
    /// The value of an option is invalid.
    #[error("{key}: {value:?} is wrong, expected {expected}")]
    Option {
        /// The option.
        key: &'static str,
        /// Its value.
        value: String,
        /// A description of valid values.
        expected: &'static str,
    },
    /// A file or folder cannot be created, locked, read or written.
    #[error(transparent)]
    File(#[from] state_file::Error),
}

/// Returns a function for `map_err` that adds the failed operation and its path.
pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
    let error = state_file::Error::io(action, path);
    move |source| error(source).into()
}
