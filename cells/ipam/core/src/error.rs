//! Why an address is not given or taken back; the texts are those clients of Cilium know.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::range::Family;

/// Why an address is not given or taken back. Nothing has been changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Every address of the node's ranges is in use.
    #[error("range is full")]
    Full,
    /// The address belongs to somebody.
    #[error("provided IP is already allocated")]
    Allocated,
    /// The address is in none of the node's ranges, or is its first or last.
    #[error("provided IP is not in the valid range. The range of valid IPs is {0}")]
    NotInRange(IpNetwork),
    /// The family is off.
    #[error("{} allocation disabled", match .0 { Family::V4 => "IPv4", Family::V6 => "IPv6" })]
    Disabled(Family),
    /// An address was asked for by its number without naming the pool.
    #[error("unable to restore IP {address} for {owner:?}: pool name must be provided")]
    NoPool {
        /// The address.
        address: IpAddr,
        /// Who wants it.
        owner: String,
    },
    /// An address was given back without naming the pool.
    #[error("no IPAM pool provided for IP release of {0}")]
    NoPoolForRelease(IpAddr),
    /// What should be an address is none.
    #[error("Invalid IP address: {0}")]
    NotAnAddress(String),
    /// The address is an endpoint's; deleting the endpoint gives it back.
    #[error("IP is in use by an endpoint")]
    InUse,
    /// The address is the node's own in the pod range; every pod's traffic to and from the host needs it.
    #[error("IP {0} is the router's")]
    Router(IpAddr),
    /// The address was given for good, or its time is up.
    #[error("no expiration timer registered")]
    NoTimer,
    /// The address expires for somebody else.
    #[error("UUID mismatch, not stopping expiration timer")]
    UuidMismatch,
    /// The node does not know its ranges yet.
    #[error("the node's pod ranges are not known yet")]
    NoRanges,
}
