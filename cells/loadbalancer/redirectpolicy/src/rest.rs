//! `GET /lrp`: policies with their frontends and backends.

use api::Response;
use api_models::{BackendAddress, FrontendAddress, FrontendMapping, LRPBackend, LRPSpec, Required};
use k8s_tables::Row;
use k8s_tables::core::Pod;
use loadbalancer::{Backend, LbAddress};
use statedb::{Snapshot, Table};

use crate::policy::{LocalRedirectPolicy, Matched};

pub(crate) fn get_lrp(
    policies: &Table<LocalRedirectPolicy>,
    backends: &Table<Backend>,
    pods: Option<&Table<Row<Pod>>>,
) -> Response {
    Response::json(200, &list(policies, backends, pods))
}

/// Returns the policies by namespace and name.
pub(crate) fn list(
    policies: &Table<LocalRedirectPolicy>,
    backends: &Table<Backend>,
    pods: Option<&Table<Row<Pod>>>,
) -> Vec<LRPSpec> {
    let snapshot = policies.snapshot();
    policies.all(&snapshot).map(|policy| model(policy, backends, pods, &snapshot)).collect()
}

fn model(
    policy: &LocalRedirectPolicy,
    backends: &Table<Backend>,
    pods: Option<&Table<Row<Pod>>>,
    snapshot: &Snapshot,
) -> LRPSpec {
    let rows = backends.prefix(snapshot, Backend::of_service(&policy.service_name()));
    let backends: Vec<LRPBackend> = rows.map(|row| backend(row, pods, snapshot)).collect();
    let mapping = |address: FrontendAddress| FrontendMapping {
        backends: backends.clone().into(),
        frontend_address: Some(address),
    };
    let (lrp_type, mappings): (&str, Vec<FrontendMapping>) = match &policy.frontend {
        Matched::Address(ip, ports) => {
            let at = |port: u16, protocol: &str| frontend(ip.to_string(), port, protocol);
            ("addr", ports.iter().map(|port| mapping(at(port.port, port.protocol.name()))).collect())
        }
        // The addresses of the service are in `GET /service`.
        Matched::Service(_, ports) => {
            let at = |port: u16, protocol: &str| frontend(String::new(), port, protocol);
            ("svc", ports.iter().map(|port| mapping(at(port.port, port.protocol.name()))).collect())
        }
    };
    LRPSpec {
        frontend_mappings: mappings.into(),
        frontend_type: policy.kind().description().to_owned(),
        lrp_type: lrp_type.to_owned(),
        name: policy.id.name().to_owned(),
        namespace: policy.id.namespace().to_owned(),
        service_id: policy.frontend.service().map(ToString::to_string).unwrap_or_default(),
        uid: policy.uid.to_string(),
    }
}

fn frontend(ip: String, port: u16, protocol: &str) -> FrontendAddress {
    FrontendAddress { ip, port: port.into(), protocol: protocol.to_owned(), scope: String::new() }
}

fn backend(row: &Backend, pods: Option<&Table<Row<Pod>>>, snapshot: &Snapshot) -> LRPBackend {
    let LbAddress { ip, port, protocol, .. } = row.address;
    let has = |pod: &Pod| pod.status.pod_ips.iter().any(|of_pod| of_pod.ip.parse() == Ok(ip));
    let pod = pods.and_then(|pods| pods.all(snapshot).find(|pod| has(pod)));
    let pod = pod.map(|pod| format!("{}/{}", pod.metadata.namespace, pod.metadata.name));
    LRPBackend {
        backend_address: Some(BackendAddress {
            ip: Required(ip.to_string()),
            node_name: String::new(),
            port: port.into(),
            preferred: false,
            protocol: protocol.to_string(),
            state: row.state.name().to_owned(),
            weight: None,
            zone: String::new(),
        }),
        pod_id: pod.unwrap_or_else(|| "unknown".to_owned()),
    }
}
