//! The table `ipam`: who has which address of this node.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use statedb::{Query, TableSpec};

/// The one pool there is outside of multi-pool mode.
pub const DEFAULT_POOL: &str = "default";

/// An address that cannot be given away at present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Address {
    /// The address.
    #[serde(rename = "Address")]
    pub address: IpAddr,
    /// Who asked for it: `NAMESPACE/POD`, `router`, ...
    #[serde(rename = "Owner")]
    pub owner: Arc<str>,
    /// On what terms it is held.
    #[serde(rename = "Lease")]
    pub lease: Lease,
}

/// On what terms an address is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Lease {
    /// Until it is given back.
    Held,
    /// By an endpoint; goes with it and cannot be given back otherwise.
    Endpoint(u16),
    /// Until the time comes, unless the holder of the token says that it is in use.
    Expiring {
        /// The token.
        uuid: Arc<str>,
        /// When it goes back to the range.
        #[serde(skip)]
        at: Instant,
    },
    /// By nobody: it rests, so that nothing meant for its last owner reaches the next one.
    Resting {
        /// When it was given back.
        #[serde(skip)]
        since: Instant,
    },
}

impl Address {
    /// The row of an address.
    pub fn by_address(address: IpAddr) -> Query<Address> {
        Query::primary(address)
    }

    /// Whether somebody has it.
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
        vec![self.address.to_string(), self.owner.to_string(), DEFAULT_POOL.to_owned(), lease]
    }
}
