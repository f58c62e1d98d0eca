//! Errors of the port range.

use std::io;
use std::path::PathBuf;

use crate::ports::InvalidPorts;

/// A range that cannot be served, or a setting of the kernel that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The range lies behind that of source ports, and so within the ports that translations use.
    #[error(
        "option node-port-range: {range} lies behind the kernel's source ports ({ephemeral}); give a range below them, or \
         set net.ipv4.ip_local_port_range to one that ends behind it"
    )]
    BehindSourcePorts {
        /// The option's value.
        range: String,
        /// The kernel's range.
        ephemeral: String,
    },
    /// The kernel picks source ports from the range, and the agent may not change that.
    #[error(
        "option node-port-range: the kernel picks source ports of {ephemeral}, of which {open} are in {range} and not \
         reserved; set enable-auto-protect-node-port-range=true, add them to net.ipv4.ip_local_reserved_ports, or give \
         another range"
    )]
    Overlap {
        /// The option's value.
        range: String,
        /// The kernel's range.
        ephemeral: String,
        /// The ports at issue.
        open: String,
    },
    /// A setting of the kernel has an unknown form.
    #[error("{}: {source}", path.display())]
    Form {
        /// The setting's file.
        path: PathBuf,
        /// The cause.
        source: InvalidPorts,
    },
    /// A setting of the kernel cannot be read or written.
    #[error("could not {operation} {}; the ports of NodePort services are not reserved", path.display())]
    Setting {
        /// The operation in words.
        operation: &'static str,
        /// The setting's file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The record of the ports that were added cannot be read or written.
    #[error(transparent)]
    Record(#[from] state_file::Error),
}
