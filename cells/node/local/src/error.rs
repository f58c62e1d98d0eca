//! What can be wrong with the node's settings.

use std::path::PathBuf;

/// The local node cannot be described.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither family is enabled.
    #[error("options enable-ipv4 and enable-ipv6 are both false: enable at least one")]
    NoFamily,
    /// An option has a value that it cannot have.
    #[error("option {option}: '{value}' is wrong; give {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// The given value.
        value: String,
        /// A description of valid values.
        expected: &'static str,
    },
    /// No address was found to stand for the node.
    #[error(
        "no {family} address found on this node: add one to a device, set {option}, or set {switch}=false"
    )]
    NoAddress {
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// The option that names the address.
        option: &'static str,
        /// The option that turns the family off.
        switch: &'static str,
    },
    /// A file of the state folder could not be read or written.
    #[error(transparent)]
    State(#[from] state_file::Error),
    /// A file of the system could not be used.
    #[error("{}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
}
