//! Errors of a topology.

use ipnetwork::IpNetwork;

/// A reason for which a topology is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A part is no CIDR.
    #[error("{text:?} is no CIDR such as 10.0.0.0/16")]
    Invalid {
        /// The part.
        text: String,
    },
    /// There are separators alone.
    #[error("there is no subnet in {text:?}")]
    Empty {
        /// The topology.
        text: String,
    },
    /// A prefix is in two groups.
    #[error("{prefix} is in the groups {first} and {second}")]
    Twice {
        /// The prefix.
        prefix: IpNetwork,
        /// The first group, from 1 on.
        first: u32,
        /// The second one.
        second: u32,
    },
    /// There are more prefixes than the map takes.
    #[error("there are {found} subnets, more than {most}")]
    TooMany {
        /// The number of prefixes.
        found: usize,
        /// The capacity of the map.
        most: usize,
    },
}
