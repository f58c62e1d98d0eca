//! Errors.

use std::io;
use std::path::{Path, PathBuf};

/// An input that cannot be judged at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder cannot be read or written.
    #[error("cannot read {}: {source}", .path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {reason}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault and the remedy.
        reason: String,
    },
    /// The hive cannot judge the options, for a reason that is not one of them.
    #[error("options cannot be judged: {0}")]
    Hive(Box<hive::HiveError>),
    /// An embedded file of the chart is malformed.
    #[error("file {file} of the chart: {reason}")]
    Chart {
        /// Its name.
        file: &'static str,
        /// The fault.
        reason: String,
    },
    /// The option of a path of the node cannot be read.
    #[error(transparent)]
    Option(#[from] hive::ConfigError),
    /// Pinned maps cannot be read.
    #[error(transparent)]
    Maps(#[from] bpf::Error),
    /// The version of the maps cannot be read.
    #[error(transparent)]
    Schema(#[from] maps::Error),
    /// Records of endpoints cannot be read.
    #[error(transparent)]
    Records(#[from] endpoints::error::StateError),
    /// The links of the node cannot be listed.
    #[error("cannot list links: {0}")]
    Links(#[from] devices::NetlinkError),
}

impl Error {
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { path, source }
    }

    pub(crate) fn content(path: &Path, reason: impl Into<String>) -> Error {
        Error::Content { path: path.to_owned(), reason: reason.into() }
    }
}
