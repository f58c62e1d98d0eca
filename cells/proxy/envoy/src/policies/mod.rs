//! The policies of endpoints in the form that Cilium's filters in Envoy enforce (`cilium.NetworkPolicy`).
//!
//! Sibling folders that it uses: `secrets`.

mod http;
mod memo;
mod side;
mod tables;
#[cfg(test)]
mod tests;
mod tls;

pub(crate) use memo::Memo;
pub(crate) use side::Peers;
pub(crate) use tables::{Policies, Tables};

use std::net::IpAddr;

use envoy_api::cilium::NetworkPolicy;
use policy::EndpointPolicy;
use policy_engine::Direction;

/// Returns the policy of an endpoint with these addresses, IPv6 first.
pub(crate) fn network_policy(
    row: &EndpointPolicy,
    addresses: impl Iterator<Item = IpAddr>,
    peers: &impl Peers,
) -> NetworkPolicy {
    let ports = &row.subject.named_ports;
    NetworkPolicy {
        endpoint_ips: addresses.map(|ip| ip.to_string()).collect(),
        endpoint_id: row.subject.endpoint.into(),
        ingress_per_port_policies: match row.ingress_enforced {
            true => side::side(Direction::Ingress, &row.filters.ingress, ports, peers),
            false => side::unenforced(),
        },
        egress_per_port_policies: match row.egress_enforced {
            true => side::side(Direction::Egress, &row.filters.egress, ports, peers),
            false => side::unenforced(),
        },
    }
}
