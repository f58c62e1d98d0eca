//! Services and EndpointSlices of Kubernetes as services, frontends and backends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::address::{LbAddress, Protocol, Scope};
use crate::backend::{Backend, BackendState, DEFAULT_WEIGHT, Zone};
use crate::frontend::{FrontendParams, FrontendType};
use crate::name::ServiceName;
use crate::service::{Service, TrafficPolicy};
use crate::source::Source;

/// Label of services that are to have no frontends.
const HEADLESS: &str = "service.kubernetes.io/headless";
/// Annotations by which older services ask for backends of their zone.
const TOPOLOGY: [&str; 2] =
    ["service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"];
/// Annotation of a slice: the weight of its backends.
const WEIGHT: &str = "service.cilium.io/weight";
/// How long a client stays with its backend when the service does not say.
const DEFAULT_AFFINITY: u64 = 10_800;
/// What an ingress controller gives to services that have no backends.
const INGRESS_DUMMY: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 192, 192, 192), 9999);

/// The IP families that are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Families {
    /// IPv4
    pub v4: bool,
    /// IPv6
    pub v6: bool,
}

impl Families {
    pub(crate) fn has(self, ip: &IpAddr) -> bool {
        if ip.is_ipv4() { self.v4 } else { self.v6 }
    }
}

fn protocol(protocol: k8s::Protocol) -> Protocol {
    match protocol {
        k8s::Protocol::Tcp => Protocol::Tcp,
        k8s::Protocol::Udp => Protocol::Udp,
        k8s::Protocol::Sctp => Protocol::Sctp,
    }
}

/// A service with its frontends.
pub fn service(
    manifest: &k8s::Service,
    source: Source,
    families: Families,
) -> (Service, Vec<FrontendParams>) {
    let policy = |local| if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
    let metadata = &manifest.metadata;
    let affinity = manifest.session_affinity_timeout.map_or(DEFAULT_AFFINITY, u64::from);
    let ranges = manifest.source_ranges.iter().filter_map(|text| text.trim().parse::<IpNetwork>().ok());
    let service = Service {
        labels: metadata.labels.clone(),
        annotations: metadata.annotations.clone(),
        selector: manifest.selector.clone(),
        ext_traffic_policy: policy(manifest.external_local),
        int_traffic_policy: policy(manifest.internal_local),
        session_affinity: manifest.session_affinity.then(|| Duration::from_secs(affinity)),
        load_balancer_class: manifest.load_balancer_class.clone(),
        health_check_node_port: manifest.health_check_node_port,
        source_ranges: ranges.filter_map(|r| IpNetwork::new(r.network(), r.prefix()).ok()).collect(),
        port_names: manifest.ports.iter().map(|port| (port.name.clone(), port.port)).collect(),
        traffic_distribution: distribution(manifest),
        ..Service::new(ServiceName::new(&metadata.namespace, &metadata.name), source)
    };
    (service, frontends(manifest, families))
}

fn distribution(manifest: &k8s::Service) -> String {
    if manifest.internal_local {
        return String::new();
    }
    if !manifest.traffic_distribution.is_empty() {
        return manifest.traffic_distribution.clone();
    }
    let annotation = TOPOLOGY.iter().find_map(|name| manifest.metadata.annotations.get(*name));
    match annotation.map(String::as_str) {
        None | Some("" | "disabled" | "Disabled") => String::new(),
        Some(_) => "PreferSameZone".to_owned(),
    }
}

/// The frontends in order of their addresses. Of two with one address the first counts.
fn frontends(manifest: &k8s::Service, families: Families) -> Vec<FrontendParams> {
    use k8s::ServiceType;
    if manifest.headless
        || manifest.kind == ServiceType::ExternalName
        || manifest.metadata.labels.contains_key(HEADLESS)
    {
        return Vec::new();
    }
    let external = &[Scope::External][..];
    let scopes = match manifest.external_local != manifest.internal_local {
        true => &[Scope::External, Scope::Internal],
        false => external,
    };
    let mut frontends: BTreeMap<LbAddress, FrontendParams> = BTreeMap::new();
    let mut add = |kind, ip: IpAddr, number: u16, scopes: &[Scope], port: &k8s::ServicePort| {
        for &scope in scopes.iter().filter(|_| families.has(&ip) && number != 0) {
            let address = LbAddress { ip, port: number, protocol: protocol(port.protocol), scope };
            let port_name: Arc<str> = port.name.as_str().into();
            let params = FrontendParams { address, kind, port_name, service_port: port.port };
            frontends.entry(address).or_insert(params);
        }
    };
    for port in &manifest.ports {
        for ip in &manifest.cluster_ips {
            add(FrontendType::ClusterIP, *ip, port.port, external, port);
        }
        if matches!(manifest.kind, ServiceType::NodePort | ServiceType::LoadBalancer) {
            let v6 = manifest.cluster_ips.iter().any(IpAddr::is_ipv6);
            // A service without addresses has the first family that is on.
            let v4 = manifest.cluster_ips.iter().any(IpAddr::is_ipv4) || !v6;
            if v4 {
                add(FrontendType::NodePort, Ipv4Addr::UNSPECIFIED.into(), port.node_port, scopes, port);
            }
            if v6 {
                add(FrontendType::NodePort, Ipv6Addr::UNSPECIFIED.into(), port.node_port, scopes, port);
            }
        }
        if manifest.kind == ServiceType::LoadBalancer {
            for ip in manifest.ingress.iter().filter(|ingress| ingress.vip).filter_map(|ingress| ingress.ip) {
                add(FrontendType::LoadBalancer, ip, port.port, scopes, port);
            }
        }
        for ip in &manifest.external_ips {
            add(FrontendType::ExternalIPs, *ip, port.port, external, port);
        }
    }
    frontends.into_values().collect()
}

/// The backends of a slice, and what of it was passed over. None if it belongs to no service.
pub fn slice(manifest: &k8s::EndpointSlice, source: Source, families: Families) -> Option<Vec<Backend>> {
    let name = ServiceName::new(&manifest.metadata.namespace, manifest.service()?);
    let weight = weight(manifest);
    // One port under several names is one backend with several names.
    let mut ports: BTreeMap<(u16, Protocol), BTreeSet<&str>> = BTreeMap::new();
    for port in &manifest.ports {
        if let Some(number) = port.port {
            let names = ports.entry((number, protocol(port.protocol))).or_default();
            names.extend(Some(port.name.as_str()).filter(|name| !name.is_empty()));
        }
    }
    let mut backends = Vec::new();
    for endpoint in &manifest.endpoints {
        for ip in endpoint.addresses.iter().filter(|ip| families.has(ip)) {
            for (&(port, protocol), names) in &ports {
                if (*ip, port) == (INGRESS_DUMMY.0.into(), INGRESS_DUMMY.1) {
                    continue;
                }
                backends.push(Backend {
                    port_names: names.iter().map(|name| Arc::from(*name)).collect(),
                    weight,
                    node_name: endpoint.node_name.as_str().into(),
                    zone: zone(endpoint),
                    state: if weight == 0 { BackendState::Maintenance } else { state(endpoint) },
                    ..Backend::new(name.clone(), LbAddress::new(*ip, port, protocol), source)
                });
            }
        }
    }
    Some(backends)
}

fn weight(manifest: &k8s::EndpointSlice) -> u16 {
    let Some(text) = manifest.metadata.annotations.get(WEIGHT) else { return DEFAULT_WEIGHT };
    text.parse().unwrap_or_else(|_| {
        let slice = format!("{}/{}", manifest.metadata.namespace, manifest.metadata.name);
        tracing::warn!(slice, weight = text, "Ignoring annotation {WEIGHT}: give a number from 0 to 65535");
        DEFAULT_WEIGHT
    })
}

fn zone(endpoint: &k8s::Endpoint) -> Option<Zone> {
    let for_zones: Vec<Arc<str>> = endpoint.for_zones.iter().map(|zone| zone.as_str().into()).collect();
    let known = !endpoint.zone.is_empty() || !for_zones.is_empty();
    let for_zones = (!for_zones.is_empty()).then_some(for_zones);
    known.then(|| Zone { zone: endpoint.zone.as_str().into(), for_zones })
}

fn state(endpoint: &k8s::Endpoint) -> BackendState {
    match (endpoint.ready, endpoint.terminating, endpoint.serving) {
        (true, ..) => BackendState::Active,
        (false, true, false) => BackendState::TerminatingNotServing,
        (false, true, true) => BackendState::Terminating,
        (false, false, _) => BackendState::Maintenance,
    }
}

/// Backends that several slices give to one service, each once: all names, the better state.
pub fn merge(backends: impl IntoIterator<Item = Backend>) -> Vec<Backend> {
    let mut merged: BTreeMap<(ServiceName, LbAddress), Backend> = BTreeMap::new();
    for backend in backends {
        let key = (backend.service_name.clone(), backend.address);
        match merged.get_mut(&key) {
            None => _ = merged.insert(key, backend),
            Some(first) => {
                // Without names it serves all ports.
                let all = first.port_names.is_empty() || backend.port_names.is_empty();
                let names: BTreeSet<_> =
                    first.port_names.iter().chain(&backend.port_names).cloned().collect();
                let names = if all { Vec::new() } else { names.into_iter().collect() };
                if backend.state < first.state {
                    *first = backend;
                }
                first.port_names = names;
            }
        }
    }
    merged.into_values().collect()
}
