//! `GET /service`: frontends in the models of the REST API.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api::Response;
use api_models::{
    BackendAddress, FrontendAddress, KubeProxyReplacementFeatures, Nat46X64, Nat46X64Gateway, NodePort,
    Required, Service as Model, ServiceFlags, ServiceSpec, ServiceStatus, StatusResponse, Switch,
};
use statedb::Table;

use crate::config::ServicesConfig;
use crate::model::address::{LbAddress, Scope};
use crate::model::annotations;
use crate::model::backend::Backend;
use crate::model::frontend::{Frontend, FrontendType};
use crate::model::name::ServiceName;
use crate::model::service::{Algorithm, NatPolicy};
use crate::model::source::Source;
use crate::option_values::{Acceleration, DsrDispatch, LbMode};

pub(crate) fn get_service(frontends: &Table<Frontend>) -> Response {
    Response::json(200, &list(frontends))
}

/// Returns the frontends that the datapath serves, by address.
pub(crate) fn list(frontends: &Table<Frontend>) -> Vec<Model> {
    let snapshot = frontends.snapshot();
    let served = frontends.all(&snapshot).filter(|frontend| frontend.is_reconciled());
    served.map(|frontend| model(frontend)).collect()
}

/// Sets the parts of kube-proxy that the agent replaces, in `GET /healthz`.
///
/// Services are for pods in any case, for clients outside the cluster if the agent replaces kube-proxy.
pub(crate) fn status(config: &ServicesConfig, status: &mut StatusResponse) {
    let replaces = config.kube_proxy_replacement;
    let replacement = status.kube_proxy_replacement.get_or_insert_default();
    // The cell of socket load balancing reports its part before or after this one.
    let known = replacement.features.take().unwrap_or_default();
    let (off, replaced) = (Some(Switch::default()), replaces.then_some(Switch { enabled: true }));
    let outside = Some(Switch { enabled: replaces });
    let features = KubeProxyReplacementFeatures {
        annotations: if replaces { annotations_in_use(config).into() } else { Default::default() },
        graceful_termination: replaced,
        external_ips: outside.clone(),
        host_port: outside,
        nat46x64: Some(translation(config)),
        node_port: Some(if replaces { node_port(config) } else { NodePort::default() }),
        session_affinity: Some(Switch { enabled: true }),
        socket_lb: known.socket_lb.or_else(|| off.clone()),
        bpf_socket_lb_hostns_only: known.bpf_socket_lb_hostns_only,
        socket_lb_tracing: off,
        ..KubeProxyReplacementFeatures::default()
    };
    replacement.mode = if replaces { "True" } else { "False" }.to_owned();
    replacement.features = Some(features);
}

/// Returns which packets change the IP family.
fn translation(config: &ServicesConfig) -> Nat46X64 {
    let (gateway, service) = (config.enable_nat46x64_gateway, config.bpf_lb_nat46x64);
    if !config.kube_proxy_replacement || !gateway && !service {
        return Nat46X64::default();
    }
    let prefixes = if gateway { vec![PREFIX.to_owned()].into() } else { Default::default() };
    Nat46X64 {
        enabled: true,
        gateway: Some(Nat46X64Gateway { enabled: gateway, prefixes }),
        service: Some(Switch { enabled: service }),
    }
}

/// The range of IPv6 that IPv4 machines have addresses in (RFC 6052, 2.1).
const PREFIX: &str = "64:ff9b::/96";

/// Returns how node ports are served.
fn node_port(config: &ServicesConfig) -> NodePort {
    let ports = config.node_port_range.ports();
    let has_maglev = config.bpf_lb_algorithm == Algorithm::Maglev;
    let has_direct_return = config.has_direct_return();
    let dispatch = match config.bpf_lb_dsr_dispatch {
        _ if !has_direct_return => "",
        DsrDispatch::Opt => "IP Option/Extension",
        DsrDispatch::Ipip => "IPIP",
        DsrDispatch::Geneve => "Geneve",
    };
    let mode = match config.bpf_lb_mode {
        LbMode::Dsr if has_direct_return => "DSR",
        LbMode::Hybrid if has_direct_return => "Hybrid",
        _ => "SNAT",
    };
    let acceleration = match config.bpf_lb_acceleration {
        Acceleration::Disabled => "Disabled",
        Acceleration::Native => "Native",
        Acceleration::BestEffort => "Best-Effort",
        Acceleration::TestingOnly => "Generic",
    };
    NodePort {
        acceleration: acceleration.to_owned(),
        algorithm: if has_maglev { "Maglev" } else { "Random" }.to_owned(),
        dsr_mode: dispatch.to_owned(),
        enabled: true,
        lut_size: config.table_size().map_or(0, i64::from),
        mode: mode.to_owned(),
        port_max: (*ports.end()).into(),
        port_min: (*ports.start()).into(),
    }
}

/// Returns the annotations of services that have an effect, in order.
fn annotations_in_use(config: &ServicesConfig) -> Vec<String> {
    let algorithm = config.bpf_lb_algorithm_annotation.then_some(annotations::ALGORITHM);
    let chooses_mode = config.bpf_lb_mode_annotation && config.has_direct_return();
    let mode = chooses_mode.then_some(annotations::FORWARDING_MODE);
    let always = [
        annotations::NODE,
        annotations::NODE_SELECTOR,
        annotations::PROXY_DELEGATION,
        annotations::SOURCE_RANGES_POLICY,
        annotations::TYPE,
    ];
    let mut names: Vec<String> = always.into_iter().chain(algorithm).chain(mode).map(str::to_owned).collect();
    names.sort_unstable();
    names
}

fn model(frontend: &Frontend) -> Model {
    let (address, service) = (frontend.address(), &frontend.service);
    let ext_policy = service.ext_traffic_policy.name().to_owned();
    let kind = match frontend.redirect_to {
        Some(_) => FrontendType::LocalRedirect,
        None => frontend.params.kind,
    };
    let proxy = service.proxy_port(frontend.params.service_port).map(|port| proxy(&address, port));
    let scope = match address.scope {
        Scope::External => "external",
        Scope::Internal => "internal",
    };
    let spec = ServiceSpec {
        backend_addresses: frontend
            .backends
            .iter()
            .map(|row| backend(row))
            .chain(proxy)
            .collect::<Vec<_>>()
            .into(),
        flags: Some(ServiceFlags {
            cluster: service.name.cluster().unwrap_or_default().to_owned(),
            ext_traffic_policy: ext_policy.clone(),
            health_check_node_port: service.health_check_node_port.into(),
            int_traffic_policy: service.int_traffic_policy.name().to_owned(),
            name: service.name.name().to_owned(),
            namespace: service.name.namespace().to_owned(),
            nat_policy: match service.nat_policy {
                NatPolicy::None => String::new(),
                policy => policy.name().to_owned(),
            },
            traffic_policy: ext_policy,
            kind: kind.name().to_owned(),
        }),
        frontend_address: FrontendAddress {
            ip: address.ip.to_string(),
            port: address.port.into(),
            protocol: address.protocol.to_string(),
            scope: scope.to_owned(),
        },
        id: frontend.id.into(),
        update_services: false,
    };
    let status = ServiceStatus { realized: Some(spec.clone()) };
    Model { spec: Some(spec), status: Some(status) }
}

/// Returns the proxy of this node to which the connections of a frontend are redirected.
fn proxy(frontend: &LbAddress, port: u16) -> BackendAddress {
    let ip: IpAddr = match frontend.ip {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let address = LbAddress::new(ip, port, frontend.protocol);
    backend(&Backend::new(ServiceName::new("", ""), address, Source::Local))
}

fn backend(backend: &Backend) -> BackendAddress {
    BackendAddress {
        ip: Required(backend.address.ip.to_string()),
        node_name: backend.node_name.to_string(),
        port: backend.address.port.into(),
        preferred: true,
        protocol: backend.address.protocol.to_string(),
        state: backend.effective_state().name().to_owned(),
        weight: Some(backend.weight.into()),
        zone: backend.zone.as_ref().map(|zone| zone.zone.to_string()).unwrap_or_default(),
    }
}
