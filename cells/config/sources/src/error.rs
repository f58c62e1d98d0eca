//! Errors.

use std::io;
use std::path::PathBuf;

/// Why the configuration of the cluster cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option has a value that it cannot have.
    #[error("option {option}: {value:?} is wrong: {reason}; give a list of objects such as {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// The fault.
        reason: String,
        /// A description of valid values.
        expected: &'static str,
    },
    /// A source of `build-config` is none.
    #[error("option source: {value:?} is wrong: {reason}")]
    Source {
        /// The source.
        value: String,
        /// The fault.
        reason: &'static str,
    },
    /// No source has cluster objects.
    #[error("no API server is known: give --k8s-kubeconfig-path or --k8s-api-server-urls, or run as a pod")]
    NoServer,
    /// An object cannot be read.
    #[error("{object} cannot be read: {reason}")]
    Read {
        /// The object.
        object: String,
        /// Why.
        reason: String,
    },
    /// The folder cannot be written.
    #[error("cannot {action} {}: {source}", path.display())]
    Folder {
        /// The failed operation.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}
