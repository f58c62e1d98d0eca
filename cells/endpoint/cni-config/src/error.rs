//! Errors of the CNI configuration file.

use std::io;
use std::path::{Path, PathBuf};

/// Why the CNI configuration file was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A mode that needs the network of another file.
    #[error(
        "invalid CNI chaining mode: {mode} (set cni-chaining-target to the network to chain to, or read-cni-conf)"
    )]
    NoTarget {
        /// The mode of `cni-chaining-mode`.
        mode: &'static str,
    },
    /// No file has the network of `cni-chaining-target`.
    #[error("no matching CNI configurations found (will retry): {} has no network {target:?}", folder.display())]
    NoNetwork {
        /// The wanted network.
        target: String,
        /// The searched folder.
        folder: PathBuf,
    },
    /// The file of `read-cni-conf` is missing, unreadable or no network configuration.
    #[error("option read-cni-conf: {} {reason}", path.display())]
    Custom {
        /// The file.
        path: PathBuf,
        /// Its fault.
        reason: String,
    },
    /// The option is no path of a file.
    #[error("option write-cni-conf-when-ready: {path:?} names no file in a folder")]
    NoFolder {
        /// The option's value.
        path: String,
    },
    /// A folder or file cannot be used.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The failed step.
        action: &'static str,
        /// Its file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] state_file::Error),
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    }
}
