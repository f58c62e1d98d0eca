//! What can go wrong with a setting.

use crate::Name;

/// A setting could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is no path below `/proc/sys`.
    #[error(
        "'{name}' is no kernel setting: give it as net.ipv4.ip_forward or net/ipv4/conf/eth0.1/rp_filter"
    )]
    Name {
        /// The given value.
        name: String,
    },
    /// The kernel did not take the value.
    #[error("kernel setting {name}={value}: {reason}")]
    Write {
        /// The setting.
        name: Name,
        /// A description of valid values.
        value: String,
        /// Why it is not.
        reason: String,
    },
    /// The value could not be read.
    #[error("kernel setting {name}: {reason}")]
    Read {
        /// The setting.
        name: Name,
        /// Why.
        reason: String,
    },
    /// The agent stops.
    #[error("kernel setting {name}: the agent stops")]
    Stopped {
        /// The setting.
        name: Name,
    },
}
