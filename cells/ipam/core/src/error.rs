//! Errors of allocation, with Cilium's texts, which its clients may compare.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use crate::listed::ListedBy;
use crate::range::Family;

/// An error of an allocation or release. Nothing has been changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Every address of the pool's ranges is in use.
    #[error("range is full: pool {pool} has {capacity} {family} addresses on this node, {most}")]
    Full {
        /// The pool.
        pool: Arc<str>,
        /// The family that lacks an address.
        family: Family,
        /// Number of addresses that can be allocated.
        capacity: u128,
        /// The namespace, or the owner in none, that holds most of them.
        most: Holder,
    },
    /// Every address of the node's ranges of a pool is in use; more ranges are requested, with `ipam=multi-pool`.
    #[error("all CIDR ranges are exhausted: {0}")]
    Exhausted(#[source] Box<Error>),
    /// The pools that are chosen by selectors are not known yet.
    #[error("ipam-metadata-manager has not synced all pod IP pools yet")]
    PoolsNotSynced,
    /// The pool of a pod depends on an object that is not known.
    #[error("resource {kind} {name:?} not found")]
    NoObject {
        /// `Pod` or `Namespace`.
        kind: &'static str,
        /// The name, with the namespace if it has one.
        name: String,
    },
    /// Several pools select the pod.
    #[error(
        "multiple CiliumPodIPPools match pod {pod}: {pools}; only one may, or the pod names its pool by annotation"
    )]
    SeveralPools {
        /// `NAMESPACE/NAME`.
        pod: String,
        /// The pools.
        pools: String,
    },
    /// No pool selects the pod, which must not fall back to the default pool.
    #[error(
        "no CiliumPodIPPool matches pod {pod}, which requires one by the annotation ipam.cilium.io/require-pool-match"
    )]
    NoPoolMatches {
        /// `NAMESPACE/NAME`.
        pod: String,
    },
    /// The node has no range of the family yet.
    #[error("no {family} address can be allocated yet: {reason}")]
    Waiting {
        /// The family.
        family: Family,
        /// The reason.
        reason: Arc<str>,
    },
    /// Another plugin allocates addresses.
    #[error("ipam=delegated-plugin: addresses are allocated by another IPAM plugin, not by this agent")]
    Delegated,
    /// The node has no range of the pool.
    #[error("unable to allocate from pool \"{pool}\" (family {}): pool not (yet) available", family.name())]
    NoSuchPool {
        /// The pool.
        pool: Arc<str>,
        /// The family.
        family: Family,
    },
    /// No address of a listed pool is free.
    #[error("no IPs currently available on the node, allocation will be retried once {by}: {full}")]
    NoneListed {
        /// The writer of the list.
        by: ListedBy,
        /// The pool with the holder of most of its addresses.
        #[source]
        full: Box<Error>,
    },
    /// The address is not listed, is being released, or is for another owner.
    #[error("IP {0} is not available")]
    NotListed(IpAddr),
    /// The address of a listed pool has an owner.
    #[error("IP already in use")]
    ListedInUse,
    /// The address has an owner.
    #[error("provided IP is already allocated")]
    Allocated,
    /// The address is in none of the node's ranges, or is its first or last.
    #[error("provided IP is not in the valid range. The range of valid IPs is {0}")]
    NotInRange(IpNetwork),
    /// The family is off.
    #[error("{0} allocation disabled")]
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
}

impl Error {
    /// Returns the pool and the family that the node has no free address of.
    pub(crate) fn lacking(&self) -> Option<(&Arc<str>, Family)> {
        match self {
            Error::NoSuchPool { pool, family } | Error::Full { pool, family, .. } => Some((pool, *family)),
            Error::Exhausted(full) => full.lacking(),
            _ => None,
        }
    }
}

/// The holder of most addresses of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// A namespace, or an owner in none, as `router`; empty if all addresses are in quarantine.
    pub name: String,
    /// Number of addresses.
    pub count: usize,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder { count: 0, .. } => f.write_str("none of them in use"),
            Holder { name, count } => write!(f, "{name} holds {count} of them"),
        }
    }
}
