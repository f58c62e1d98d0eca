//! Errors.

use std::io;
use std::path::PathBuf;

/// An error in the configuration of the cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option has an invalid value.
    #[error("option {option}: {value:?} is wrong: {reason}; give a list of objects such as {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// The reason.
        reason: String,
        /// A description of valid values.
        expected: &'static str,
    },
    /// A source of `build-config` is invalid.
    #[error("option source: {value:?} is wrong: {reason}")]
    Source {
        /// The source.
        value: String,
        /// The reason.
        reason: &'static str,
    },
    /// The hive has no source of cluster objects.
    #[error("no API server is known: give --k8s-kubeconfig-path or --k8s-api-server-urls, or run as a pod")]
    NoServer,
    /// An object cannot be read.
    #[error("{object} cannot be read: {reason}")]
    Read {
        /// The object.
        object: String,
        /// The reason.
        reason: String,
    },
    /// The folder cannot be written.
    #[error("cannot {action} {}: {source}", path.display())]
    Folder {
        /// The failed operation.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The error of the operation.
        source: io::Error,
    },
}
