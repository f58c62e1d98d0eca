//! Errors of kernel settings.

use crate::Name;

/// A setting that could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is not a path below `/proc/sys`.
    #[error(
        "'{name}' is not a kernel setting: write it as net.ipv4.ip_forward or net/ipv4/conf/eth0.1/rp_filter"
    )]
    Name {
        /// The name as it was written.
        name: String,
    },
    /// The kernel refused the value.
    #[error("kernel setting {name}={value}: {reason}")]
    Write {
        /// The setting.
        name: Name,
        /// The desired value.
        value: String,
        /// The cause, with a remedy where there is one.
        reason: String,
    },
    /// The value could not be read.
    #[error("kernel setting {name}: {reason}")]
    Read {
        /// The setting.
        name: Name,
        /// The cause.
        reason: String,
    },
    /// The agent stops before the setting was tried.
    #[error("kernel setting {name}: the agent stops")]
    Stopped {
        /// The setting.
        name: Name,
    },
}
