//! Errors of allocation, with Cilium's texts, which its clients may compare.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::range::Family;

/// An error of an allocation or release. Nothing has been changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Every address of the node's ranges is in use.
    #[error("range is full")]
    Full,
    /// The address has an owner.
    #[error("provided IP is already allocated")]
    Allocated,
    /// The address is in none of the node's ranges, or is its first or last.
    #[error("provided IP is not in the valid range. The range of valid IPs is {0}")]
    NotInRange(IpNetwork),
    /// The family is disabled.
    #[error("{} allocation disabled", match .0 { Family::V4 => "IPv4", Family::V6 => "IPv6" })]
    Disabled(Family),
    /// A given address was requested without the pool.
    #[error("unable to restore IP {address} for {owner:?}: pool name must be provided")]
    NoPool {
        /// The address.
        address: IpAddr,
        /// The owner of the request.
        owner: String,
    },
    /// An address was released without the pool.
    #[error("no IPAM pool provided for IP release of {0}")]
    NoPoolForRelease(IpAddr),
    /// The text is no address.
    #[error("Invalid IP address: {0}")]
    NotAnAddress(String),
    /// The address is an endpoint's; deleting the endpoint releases it.
    #[error("IP is in use by an endpoint")]
    InUse,
    /// The address is the node's own in the pod range; every pod's traffic to and from the host needs it.
    #[error("IP {0} is the router's")]
    Router(IpAddr),
    /// The address does not expire, or has expired already.
    #[error("no expiration timer registered")]
    NoTimer,
    /// The address was allocated with another token.
    #[error("UUID mismatch, not stopping expiration timer")]
    UuidMismatch,
    /// The node has no ranges yet.
    #[error("the node's pod ranges are not known yet")]
    NoRanges,
}
