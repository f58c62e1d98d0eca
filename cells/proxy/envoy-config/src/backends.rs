//! Backends of services as addresses of clusters.

use std::collections::BTreeSet;
use std::sync::Arc;

use envoy_api::Message as _;
use envoy_api::core::{Address, SocketAddress, address, socket_address};
use envoy_api::endpoint::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint::HostIdentifier,
};
use envoy_proxy::Value;
use loadbalancer::{Backend, BackendState, Protocol, Service, TrafficPolicy};

use crate::model::ClusterAddresses;

/// Returns the addresses of a service's backends for each wanted port, by number or name; without ports for all, under the
/// names with and without `:*`. Active backends, else those that are about to end.
pub(crate) fn clusters<'b>(
    service: &Service,
    backends: impl Iterator<Item = &'b Backend>,
    ports: &BTreeSet<String>,
    node: &str,
) -> Vec<ClusterAddresses> {
    let is_local_only = service.ext_traffic_policy == TrafficPolicy::Local;
    let is_here = |row: &&Backend| !is_local_only || row.node_name.is_empty() || row.node_name == node;
    let mut last = None;
    // Of the rows of one address the first one counts, of the source with the highest precedence.
    let mut is_first = |row: &&Backend| last.replace(row.address) != Some(row.address);
    let is_tcp = |row: &&Backend| row.address.protocol == Protocol::Tcp;
    let rows: Vec<&Backend> = backends.filter(|row| is_first(row)).filter(is_tcp).filter(is_here).collect();
    let of_state = |state| rows.iter().filter(move |row| row.effective_state() == state).copied();
    let mut usable: Vec<&Backend> = of_state(BackendState::Active).collect();
    if usable.is_empty() {
        usable.extend(of_state(BackendState::Terminating));
    }
    let addresses = |names: Option<&[&str]>| {
        let serves = |row: &&&Backend| {
            let named = |names: &[&str]| row.port_names.iter().any(|name| names.contains(&name.as_str()));
            row.port_names.is_empty() || names.is_none_or(named)
        };
        let found = usable.iter().filter(serves).map(|row| (row.address.ip.to_string(), row.address.port));
        found.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    let name = service.name.as_str();
    if ports.is_empty() {
        let all = addresses(None);
        let of = |cluster: String| ClusterAddresses { cluster, addresses: all.clone() };
        return vec![of(format!("{name}:*")), of(name.to_owned())];
    }
    let of_port = |port: &String| {
        let number: Option<u16> = port.parse().ok();
        let named = service.port_names.iter().filter(|(name, of)| Some(*of) == number || name == port);
        let names: Vec<&str> = named.map(|(name, _)| name.as_str()).collect();
        // The name of a port may be known to backends only.
        let names = if names.is_empty() { vec![port.as_str()] } else { names };
        ClusterAddresses { cluster: format!("{name}:{port}"), addresses: addresses(Some(&names)) }
    };
    ports.iter().map(of_port).collect()
}

/// Returns the addresses of a cluster, encoded.
pub(crate) fn assignment(cluster: &ClusterAddresses) -> (Arc<str>, Value) {
    let address = |(ip, port): &(String, u16)| Address {
        address: Some(address::Address::SocketAddress(SocketAddress {
            address: ip.clone(),
            port_specifier: Some(socket_address::PortSpecifier::PortValue((*port).into())),
            ..SocketAddress::default()
        })),
    };
    let endpoint = |at: &(String, u16)| LbEndpoint {
        host_identifier: Some(HostIdentifier::Endpoint(Endpoint { address: Some(address(at)) })),
    };
    let lb_endpoints = cluster.addresses.iter().map(endpoint).collect();
    let message = ClusterLoadAssignment {
        cluster_name: cluster.cluster.clone(),
        endpoints: vec![LocalityLbEndpoints { lb_endpoints }],
    };
    (cluster.cluster.as_str().into(), message.encode_to_vec().into())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use loadbalancer::{LbAddress, ServiceName, Source};

    use super::*;

    fn service() -> Service {
        let mut service = Service::new(ServiceName::new("web", "store"), Source::Kubernetes);
        service.port_names = [("http".into(), 80), ("metrics".into(), 9000)].into();
        service
    }

    fn backend(address: &str, port_name: &str, state: BackendState) -> Backend {
        let at: SocketAddr = address.parse().unwrap();
        let at = LbAddress::new(at.ip(), at.port(), Protocol::Tcp);
        let mut backend = Backend::new(ServiceName::new("web", "store"), at, Source::Kubernetes);
        backend.port_names = [port_name.into()].into();
        backend.state = state;
        backend
    }

    fn texts(rows: &[Backend], ports: &[&str]) -> Vec<String> {
        let ports = ports.iter().map(|port| (*port).to_owned()).collect();
        let found = clusters(&service(), rows.iter(), &ports, "n");
        let text = |cluster: &ClusterAddresses| {
            let addresses = cluster.addresses.iter().map(|(ip, port)| format!("{ip}:{port}"));
            format!("{} {}", cluster.cluster, addresses.collect::<Vec<_>>().join(" "))
        };
        found.iter().map(text).collect()
    }

    #[test]
    fn ports_are_matched_by_name_and_number() {
        let active = BackendState::Active;
        let rows = [
            backend("10.0.0.1:8080", "http", active),
            backend("10.0.0.1:9001", "metrics", active),
            backend("10.0.0.2:8080", "http", active),
        ];
        let http = "10.0.0.1:8080 10.0.0.2:8080";
        assert_eq!(
            texts(&rows, &["80", "http", "metrics", "81"]),
            [
                format!("web/store:80 {http}"),
                "web/store:81 ".to_owned(),
                format!("web/store:http {http}"),
                "web/store:metrics 10.0.0.1:9001".to_owned(),
            ]
        );
        let all = "10.0.0.1:8080 10.0.0.1:9001 10.0.0.2:8080";
        assert_eq!(texts(&rows, &[]), [format!("web/store:* {all}"), format!("web/store {all}")]);
    }

    #[test]
    fn terminating_backends_are_the_last_resort() {
        let ends = backend("10.0.0.1:8080", "http", BackendState::Terminating);
        let rows = [ends.clone(), backend("10.0.0.2:8080", "http", BackendState::Active)];
        assert_eq!(texts(&rows, &["80"]), ["web/store:80 10.0.0.2:8080"]);
        assert_eq!(texts(&[ends], &["80"]), ["web/store:80 10.0.0.1:8080"]);
        let gone = backend("10.0.0.1:8080", "http", BackendState::TerminatingNotServing);
        assert_eq!(texts(&[gone], &["80"]), ["web/store:80 "]);
    }

    #[test]
    fn local_policy_keeps_backends_of_this_node() {
        let mut service = service();
        service.ext_traffic_policy = TrafficPolicy::Local;
        let mut other = backend("10.0.0.1:8080", "http", BackendState::Active);
        other.node_name = "m".into();
        let mut own = backend("10.0.0.2:8080", "http", BackendState::Active);
        own.node_name = "n".into();
        let found = clusters(&service, [&other, &own].into_iter(), &BTreeSet::new(), "n");
        assert_eq!(found[0].addresses, [("10.0.0.2".to_owned(), 8080)]);
    }
}
