//! The table `ipam`: the addresses of this node that are in use, with their owners.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use statedb::{Query, TableDisplay, TableSpec};

/// The only pool outside of multi-pool mode.
pub const DEFAULT_POOL: &str = "default";

/// An address that cannot be allocated at present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Address {
    /// The address.
    #[serde(rename = "Address")]
    pub address: IpAddr,
    /// Its owner: `NAMESPACE/POD`, `router`, ...
    #[serde(rename = "Owner")]
    pub owner: Arc<str>,
    /// The pool that it is of.
    #[serde(rename = "Pool")]
    pub pool: Arc<str>,
    /// The terms of the allocation.
    #[serde(rename = "Lease")]
    pub lease: Lease,
}

/// The terms on which an address is allocated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Lease {
    /// Until it is released.
    Held,
    /// By an endpoint; released with it and not otherwise.
    Endpoint(u16),
    /// Until it expires, unless an endpoint takes it over with the token.
    Expiring {
        /// The token.
        uuid: Arc<str>,
        /// When it expires.
        #[serde(skip)]
        at: Instant,
    },
    /// Released and in quarantine, so that packets for the previous owner do not reach the next one.
    Resting {
        /// When it was released.
        #[serde(skip)]
        since: Instant,
    },
}

impl Address {
    /// Queries the row of an address.
    pub fn by_address(address: IpAddr) -> Query<Address> {
        Query::primary(address)
    }

    /// Whether it has an owner.
    pub fn allocated(&self) -> bool {
        !matches!(self.lease, Lease::Resting { .. })
    }
}

impl TableSpec for Address {
    const NAME: &'static str = "ipam";
    type Key<'a> = IpAddr;

    fn key(&self) -> IpAddr {
        self.address
    }
}

impl TableDisplay for Address {
    fn columns() -> &'static [&'static str] {
        &["Address", "Owner", "Pool", "Lease"]
    }

    fn row(&self) -> Vec<String> {
        let lease = match &self.lease {
            Lease::Held => "held".to_owned(),
            Lease::Endpoint(id) => format!("endpoint {id}"),
            Lease::Expiring { uuid, .. } => format!("expiring {uuid}"),
            Lease::Resting { .. } => "resting".to_owned(),
        };
        vec![self.address.to_string(), self.owner.to_string(), self.pool.to_string(), lease]
    }
}
