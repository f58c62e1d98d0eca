//! Errors of the configuration and its files.

use std::io;
use std::path::PathBuf;

/// Why the agent cannot run with this configuration, or here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another agent runs on the same folder.
    #[error("another agent{} runs on {folder}: stop it, or give this one its own --state-dir and --socket-path", pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// The other agent's pid, if it has written it.
        pid: Option<u32>,
    },
    /// An option has a value that it cannot have.
    #[error("{key}: {value:?} is wrong, expected {expected}")]
    Option {
        /// The option.
        key: &'static str,
        /// Its value.
        value: String,
        /// A description of valid values.
        expected: &'static str,
    },
    /// A file cannot be written or read.
    #[error(transparent)]
    File(#[from] state_file::Error),
}

/// For `map_err`: the operation and its file.
pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
    let error = state_file::Error::io(action, path);
    move |source| error(source).into()
}
