//! Conversion of Services and EndpointSlices into services, frontends and backends.

use std::cmp::Ordering;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ipnetwork::IpNetwork;
use k8s_tables::SmolStr;
use k8s_tables::core::{self, Endpoint, EndpointConditions, LoadBalancerIngress, ServicePort, ServiceSpec};
use smallvec::SmallVec;

use crate::model::address::{LbAddress, Protocol, Scope};
use crate::model::annotations;
use crate::model::backend::{Backend, BackendState, DEFAULT_WEIGHT, Zone};
use crate::model::families::Families;
use crate::model::frontend::{FrontendParams, FrontendType};
use crate::model::name::ServiceName;
use crate::model::service::{ForwardingMode, Service, TrafficDistribution, TrafficPolicy};
use crate::model::shared::Names;
use crate::model::source::Source;

/// The label of services that are to have no frontends.
const HEADLESS: &str = "service.kubernetes.io/headless";
/// The default timeout of session affinity, in seconds.
const DEFAULT_AFFINITY: u64 = 10_800;
/// The hostname label in older slices.
const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";
/// The placeholder backend that ingress controllers set for services without any.
const INGRESS_DUMMY: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 192, 192, 192), 9999);

/// Returns a protocol by its name, TCP for none; `None` for one without ports.
pub(crate) fn protocol(name: &str) -> Option<Protocol> {
    match name {
        "" | "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

/// Iterates over the texts that parse; `None` and the like are skipped.
fn parsed<T: FromStr>(texts: &[SmolStr]) -> impl Iterator<Item = T> {
    texts.iter().filter_map(|text| text.trim().parse().ok())
}

/// Parses a range of addresses: an address and a prefix length.
pub(crate) fn range(text: &str) -> Option<IpNetwork> {
    let (ip, bits) = text.trim().split_once('/')?;
    IpNetwork::new(ip.parse().ok()?, bits.parse().ok()?).ok()
}

/// Returns a service with its frontends.
pub(crate) fn service(
    manifest: &core::Service,
    source: Source,
    families: Families,
    names: &mut Names,
) -> (Service, Vec<FrontendParams>) {
    let policy = |local| if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
    let core::Service { metadata, spec, .. } = manifest;
    let client_ip = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let affinity = client_ip.and_then(|client_ip| u64::try_from(client_ip.timeout_seconds?).ok());
    let affinity = Duration::from_secs(affinity.unwrap_or(DEFAULT_AFFINITY));
    // An address without a prefix length is not a range.
    let ranges = spec.load_balancer_source_ranges.iter().filter_map(|text| range(text));
    let service = Service {
        labels: metadata.labels.clone(),
        annotations: metadata.annotations.clone(),
        selector: spec.selector.clone(),
        forwarding_mode: forwarding_mode(manifest),
        ext_traffic_policy: policy(external_local(spec)),
        int_traffic_policy: policy(internal_local(spec)),
        session_affinity: (spec.session_affinity == "ClientIP").then_some(affinity),
        load_balancer_class: spec.load_balancer_class.clone(),
        health_check_node_port: spec.health_check_node_port,
        source_ranges: ranges.filter_map(|r| IpNetwork::new(r.network(), r.prefix()).ok()).collect(),
        port_names: names.of_service.of(&port_names(&spec.ports)),
        traffic_distribution: distribution(manifest),
        ..Service::new(ServiceName::new(&metadata.namespace, &metadata.name), source)
    };
    (service, frontends(manifest, families, names))
}

fn external_local(spec: &ServiceSpec) -> bool {
    spec.external_traffic_policy == "Local"
}

fn internal_local(spec: &ServiceSpec) -> bool {
    spec.internal_traffic_policy.as_deref() == Some("Local")
}

/// Returns the ports by name, sorted; of duplicate names the last takes effect.
fn port_names(ports: &[ServicePort]) -> SmallVec<[(SmolStr, u16); 4]> {
    let mut names: SmallVec<[(SmolStr, u16); 4]> =
        ports.iter().rev().map(|p| (p.name.clone(), p.port)).collect();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    names.dedup_by(|later, earlier| later.0 == earlier.0);
    names
}

fn forwarding_mode(manifest: &core::Service) -> ForwardingMode {
    let Some(text) = manifest.metadata.annotations.get(annotations::FORWARDING_MODE) else {
        return ForwardingMode::Default;
    };
    ForwardingMode::from_name(&text.to_ascii_lowercase()).unwrap_or_default()
}

/// Returns the type of this name that [`annotations::TYPE`] may request.
pub(crate) fn askable_type(name: &str) -> Option<FrontendType> {
    let types = [FrontendType::ClusterIP, FrontendType::NodePort, FrontendType::LoadBalancer];
    types.into_iter().find(|kind| kind.name() == name)
}

/// Returns the only type of frontends that an annotation allows besides external addresses.
fn only_type(manifest: &core::Service) -> Option<FrontendType> {
    askable_type(manifest.metadata.annotations.get(annotations::TYPE)?)
}

fn distribution(manifest: &core::Service) -> TrafficDistribution {
    if internal_local(&manifest.spec) {
        return TrafficDistribution::Default;
    }
    if let Some(name) = manifest.spec.traffic_distribution.as_deref().filter(|name| !name.is_empty()) {
        return TrafficDistribution::from_name(name);
    }
    let annotation = annotations::TOPOLOGY.iter().find_map(|name| manifest.metadata.annotations.get(name));
    match annotation.map(SmolStr::as_str) {
        None | Some("" | "disabled" | "Disabled") => TrafficDistribution::Default,
        Some(_) => TrafficDistribution::PreferSameZone,
    }
}

/// Returns the frontends in order of their addresses. Of two with one address the later one takes effect, in the order
/// of types below.
fn frontends(manifest: &core::Service, families: Families, names: &mut Names) -> Vec<FrontendParams> {
    let core::Service { metadata, spec, status } = manifest;
    let none = |ip: &SmolStr| ip.eq_ignore_ascii_case("None");
    let headless = none(&spec.cluster_ip) || spec.cluster_ips.iter().any(none);
    if headless || metadata.labels.get(HEADLESS).is_some() {
        return Vec::new();
    }
    // Both fields have the same value in objects of the API server.
    let mut cluster_ips: Vec<IpAddr> = parsed(&spec.cluster_ips).collect();
    if cluster_ips.is_empty() {
        cluster_ips.extend(parsed::<IpAddr>(std::slice::from_ref(&spec.cluster_ip)));
    }
    let external = &[Scope::External][..];
    let scopes = match external_local(spec) != internal_local(spec) {
        true => &[Scope::External, Scope::Internal],
        false => external,
    };
    let mut frontends: Vec<FrontendParams> = Vec::with_capacity(spec.ports.len());
    let only = only_type(manifest);
    let mut add =
        |kind, ip: IpAddr, number: u16, scopes: &[Scope], (port, name): (&ServicePort, &Arc<str>)| {
            if kind != FrontendType::ExternalIPs && only.is_some_and(|only| only != kind) {
                return;
            }
            let Some(protocol) = protocol(&port.protocol) else { return };
            for &scope in scopes.iter().filter(|_| families.has(&ip) && number != 0) {
                let address = LbAddress { scope, ..LbAddress::new(ip, number, protocol) };
                let params =
                    FrontendParams { address, kind, port_name: name.clone(), service_port: port.port };
                frontends.push(params);
            }
        };
    for port in &spec.ports {
        let name = names.of_frontend.of(&port.name);
        let named = (port, &name);
        for ip in &cluster_ips {
            add(FrontendType::ClusterIP, *ip, port.port, external, named);
        }
        if matches!(spec.r#type.as_str(), "NodePort" | "LoadBalancer") {
            let [v4, v6] = node_port_families(spec, &cluster_ips);
            if v4 {
                add(FrontendType::NodePort, Ipv4Addr::UNSPECIFIED.into(), port.node_port, scopes, named);
            }
            if v6 {
                add(FrontendType::NodePort, Ipv6Addr::UNSPECIFIED.into(), port.node_port, scopes, named);
            }
        }
        if spec.r#type == "LoadBalancer" {
            let vip =
                |ingress: &&LoadBalancerIngress| ingress.ip_mode.as_deref().is_none_or(|mode| mode == "VIP");
            let ingress = status.load_balancer.ingress.iter().filter(vip);
            for ip in ingress.filter_map(|ingress| ingress.ip.parse().ok()) {
                add(FrontendType::LoadBalancer, ip, port.port, scopes, named);
            }
        }
        for ip in parsed(&spec.external_ips) {
            add(FrontendType::ExternalIPs, ip, port.port, external, named);
        }
    }
    frontends.reverse();
    frontends.sort_by_key(|frontend| frontend.address);
    frontends.dedup_by_key(|frontend| frontend.address);
    frontends
}

/// Returns whether node ports are for IPv4, for IPv6: by the service's `ipFamilies`, else by its addresses.
fn node_port_families(spec: &ServiceSpec, cluster_ips: &[IpAddr]) -> [bool; 2] {
    let listed = |family| spec.ip_families.iter().any(|listed| listed == family);
    let has = |of_family: fn(&IpAddr) -> bool| cluster_ips.iter().any(of_family);
    match [listed("IPv4"), listed("IPv6")] {
        [false, false] => [has(IpAddr::is_ipv4), has(IpAddr::is_ipv6)],
        listed => listed,
    }
}

/// Returns the backends of a slice, and its invalid fields; `None` if it belongs to no service.
pub(crate) fn slice(
    manifest: &core::EndpointSlice,
    source: Source,
    families: Families,
    names: &mut Names,
) -> Option<Vec<Backend>> {
    let service = manifest.metadata.labels.get(k8s_tables::SERVICE_NAME)?;
    let name = ServiceName::new(&manifest.metadata.namespace, service);
    let mut backends = Vec::new();
    add_backends(manifest, &name, source, families, names, &mut backends);
    Some(backends)
}

/// Adds the backends of a slice of this service.
pub(crate) fn add_backends(
    manifest: &core::EndpointSlice,
    name: &ServiceName,
    source: Source,
    families: Families,
    shared: &mut Names,
    backends: &mut Vec<Backend>,
) {
    let weight = weight(manifest);
    // One port under several names is one backend with several names.
    let mut ports: SmallVec<[((u16, Protocol), PortNames); 2]> = SmallVec::new();
    for port in &manifest.ports {
        if let Some(number) = port.port.filter(|number| *number != 0)
            && let Some(protocol) = protocol(port.protocol.as_deref().unwrap_or_default())
        {
            let at = ports.iter().position(|(port, _)| *port == (number, protocol)).unwrap_or_else(|| {
                ports.push(((number, protocol), PortNames::new()));
                ports.len() - 1
            });
            let names = &mut ports[at].1;
            add_names(names, port.name.iter().filter(|name| !name.is_empty()));
        }
    }
    ports.sort_by_key(|(port, _)| *port);
    // All backends of a port share its names.
    let names = |((number, protocol), names): &((u16, Protocol), PortNames)| {
        (*number, *protocol, shared.of_backend.of(names))
    };
    let ports: SmallVec<[_; 2]> = ports.iter().map(names).collect();
    backends.reserve(manifest.endpoints.len());
    for endpoint in &manifest.endpoints {
        let zone = zone(endpoint).map(|zone| shared.zones.of(&zone));
        // Endpoints with names instead of addresses (type FQDN) do not parse and are skipped.
        for ip in parsed::<IpAddr>(&endpoint.addresses).filter(|ip| families.has(ip)) {
            for (port, protocol, names) in &ports {
                let (port, protocol) = (*port, *protocol);
                if (ip, port) == (INGRESS_DUMMY.0.into(), INGRESS_DUMMY.1) {
                    continue;
                }
                backends.push(Backend {
                    port_names: names.clone(),
                    weight,
                    node_name: field_or_label(&endpoint.node_name, endpoint, HOSTNAME)
                        .cloned()
                        .unwrap_or_default(),
                    zone: zone.clone(),
                    state: if weight == 0 { BackendState::Maintenance } else { state(endpoint) },
                    ..Backend::new(name.clone(), LbAddress::new(ip, port, protocol), source)
                });
            }
        }
    }
}

fn weight(manifest: &core::EndpointSlice) -> u16 {
    let Some(text) = manifest.metadata.annotations.get(annotations::WEIGHT) else { return DEFAULT_WEIGHT };
    text.parse().unwrap_or(DEFAULT_WEIGHT)
}

/// Returns the zone of an endpoint, from its field or its older label.
fn field_or_label<'e>(
    field: &'e Option<SmolStr>,
    endpoint: &'e Endpoint,
    label: &str,
) -> Option<&'e SmolStr> {
    let older = || endpoint.deprecated_topology.get()?.get(label);
    field.as_ref().filter(|value| !value.is_empty()).or_else(older)
}

/// Returns the zone and its hints; hints without a zone are incomplete and ignored.
fn zone(endpoint: &Endpoint) -> Option<Zone> {
    let zone = field_or_label(&endpoint.zone, endpoint, ZONE).filter(|zone| !zone.is_empty())?.clone();
    let hints = endpoint.hints.get().into_iter().flat_map(|hints| &hints.for_zones);
    Some(Zone { zone, for_zones: hints.map(|zone| zone.name.clone()).collect() })
}

/// Names of one port: hardly ever more than one.
type PortNames = SmallVec<[SmolStr; 1]>;

/// Adds names that are missing.
fn add_names<'n>(names: &mut PortNames, more: impl IntoIterator<Item = &'n SmolStr>) {
    for name in more {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
}

/// Returns the state from the conditions; absent ones are true, except the terminating one.
fn state(endpoint: &Endpoint) -> BackendState {
    let EndpointConditions { ready, serving, terminating } = endpoint.conditions;
    match (ready.unwrap_or(true), terminating.unwrap_or(false), serving.unwrap_or(true)) {
        (true, ..) => BackendState::Active,
        (false, true, false) => BackendState::TerminatingNotServing,
        (false, true, true) => BackendState::Terminating,
        (false, false, _) => BackendState::Maintenance,
    }
}

/// Merges backends of one service from several slices: each address once, with all names and the better state.
pub(crate) fn merge(backends: impl IntoIterator<Item = Backend>) -> Vec<Backend> {
    let mut merged: Vec<Backend> = backends.into_iter().collect();
    let by_name = |a: &Backend, b: &Backend| match a.service_name == b.service_name {
        true => Ordering::Equal,
        false => a.service_name.cmp(&b.service_name),
    };
    merged.sort_by(|a, b| by_name(a, b).then_with(|| a.address.cmp(&b.address)));
    merged.dedup_by(|backend, first| {
        if backend.address != first.address || backend.service_name != first.service_name {
            return false;
        }
        // A backend without names serves all ports, so the merged one does, too.
        let all = first.port_names.is_empty() || backend.port_names.is_empty();
        let mut names = PortNames::new();
        if !all {
            add_names(&mut names, first.port_names.iter().chain(&*backend.port_names));
        }
        if backend.state < first.state {
            std::mem::swap(first, backend);
        }
        first.port_names = names.as_slice().into();
        true
    });
    merged
}
