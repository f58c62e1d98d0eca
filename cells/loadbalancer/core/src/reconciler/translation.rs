//! Frontends with backends of the other family, in the maps: all that decides about their packets is IPv6, with IPv4
//! addresses as `::ffff:a.b.c.d`.
//!
//! An IPv6 frontend has its IPv4 backends as mapped addresses. An IPv4 frontend has an entry without backends, by which
//! the programs make its packets IPv6, and those of a *twin* at its mapped address.

use std::net::{IpAddr, Ipv6Addr};

use ipnetwork::{IpNetwork, Ipv6Network};

use crate::model::address::LbAddress;
use crate::model::frontend::Frontend;

/// Number of bits before the IPv4 address in a mapped one.
const MAPPED_BITS: u8 = 96;

/// Returns an address as one of IPv6.
pub(crate) fn mapped(address: LbAddress) -> LbAddress {
    match address.ip {
        IpAddr::V4(ip) => LbAddress { ip: ip.to_ipv6_mapped().into(), ..address },
        IpAddr::V6(_) => address,
    }
}

/// Returns a range of addresses as one of IPv6.
pub(crate) fn mapped_range(range: IpNetwork) -> Option<IpNetwork> {
    match range {
        IpNetwork::V4(range) => {
            let network: Ipv6Addr = range.ip().to_ipv6_mapped();
            Ipv6Network::new(network, MAPPED_BITS + range.prefix()).ok().map(IpNetwork::V6)
        }
        IpNetwork::V6(_) => None,
    }
}

/// Whether the backends of a frontend are of the other family.
pub(crate) fn is_translated(frontend: &Frontend) -> bool {
    let is_ipv4 = frontend.params.address.ip.is_ipv4();
    frontend.backends.first().is_some_and(|backend| backend.address.ip.is_ipv4() != is_ipv4)
}

/// Returns the IPv4 address of a twin.
pub(crate) fn of_twin(address: LbAddress) -> Option<LbAddress> {
    match address.ip {
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map(|ip| LbAddress { ip: ip.into(), ..address }),
        IpAddr::V4(_) => None,
    }
}
