//! `GET /service`: frontends as the REST API shows them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api::Response;
use api_models::{
    BackendAddress, FrontendAddress, KubeProxyReplacementFeatures, Nat46X64, NodePort, Required,
    Service as Model, ServiceFlags, ServiceSpec, ServiceStatus, StatusResponse, Switch,
};
use statedb::Table;

use crate::address::{LbAddress, Scope};
use crate::backend::Backend;
use crate::frontend::{Frontend, FrontendType};
use crate::name::ServiceName;
use crate::service::NatPolicy;
use crate::source::Source;

pub(crate) fn get_service(frontends: &Table<Frontend>) -> Response {
    Response::json(200, &list(frontends))
}

/// The frontends that the datapath serves, by address.
pub(crate) fn list(frontends: &Table<Frontend>) -> Vec<Model> {
    let snapshot = frontends.snapshot();
    let served = frontends.all(&snapshot).filter(|frontend| frontend.is_reconciled());
    served.map(|frontend| model(frontend)).collect()
}

/// What of kube-proxy's duties the agent has taken over, in `GET /healthz`.
pub(crate) fn status(status: &mut StatusResponse) {
    let off = Some(Switch::default());
    let features = KubeProxyReplacementFeatures {
        external_ips: off.clone(),
        host_port: off.clone(),
        nat46x64: Some(Nat46X64::default()),
        node_port: Some(NodePort::default()),
        session_affinity: Some(Switch { enabled: true }),
        socket_lb: off.clone(),
        socket_lb_tracing: off,
        ..KubeProxyReplacementFeatures::default()
    };
    status.kube_proxy_replacement.get_or_insert_default().features = Some(features);
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

/// The proxy of this node that takes the connections of a frontend.
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
