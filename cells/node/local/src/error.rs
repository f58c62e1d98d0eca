//! Errors of the node's options and files.

use std::path::PathBuf;

/// An error of deriving or storing the node's row.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither family is enabled.
    #[error("options enable-ipv4 and enable-ipv6 are both false: enable at least one")]
    NoFamily,
    /// The value of an option is invalid.
    #[error("option {option}: '{value}' is wrong; give {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        value: String,
        /// A description of valid values.
        expected: &'static str,
    },
    /// No device has an address for the node.
    #[error(
        "no {family} address found on this node: add one to a device, set {option}, or set {switch}=false"
    )]
    NoAddress {
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// The options that set the address or make it unnecessary.
        option: &'static str,
        /// The option that turns the family off.
        switch: &'static str,
    },
    /// The IPAM mode is not supported.
    #[error(
        "option ipam: '{mode}' is not supported: this agent manages no interfaces of AWS; use cluster-pool, multi-pool, \
         kubernetes, crd or delegated-plugin"
    )]
    UnsupportedIpam {
        /// The mode.
        mode: &'static str,
    },
    /// The router has no address, and none is allocated.
    #[error(
        "option {option} is not set: with ipam=delegated-plugin this agent allocates no address; give the router one, \
         for instance {}",
        match *option { "local-router-ipv4" => "169.254.23.0", _ => "fe80::1" }
    )]
    NoRouter {
        /// The option.
        option: &'static str,
    },
    /// A file of the state folder could not be read or written.
    #[error(transparent)]
    State(#[from] state_file::Error),
    /// A file of the system could not be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
}
