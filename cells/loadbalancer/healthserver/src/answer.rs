//! The response to a load balancer's health check of a service.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use http_body_util::Full;
use loadbalancer::{Backend, BackendState, Service, ServiceName, ServicesWriter};
use local_node::LocalNode;
use serde::Serialize;
use statedb::Table;

const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The tables that responses are computed from.
#[derive(Clone)]
pub(crate) struct Tables {
    pub(crate) services: Table<Service>,
    pub(crate) backends: Table<Backend>,
    pub(crate) node: Table<LocalNode>,
}

impl Tables {
    pub(crate) fn new(writer: &ServicesWriter, node: Table<LocalNode>) -> Tables {
        Tables { services: writer.services(), backends: writer.backends(), node }
    }

    /// Returns the number of active backends of the service on this node; one if a proxy of the node takes its
    /// connections.
    pub(crate) fn local_endpoints(&self, name: &ServiceName) -> usize {
        let snapshot = self.services.snapshot();
        let Some(service) = self.services.get(&snapshot, Service::by_name(name)) else { return 0 };
        if !service.proxy_redirects.is_empty() {
            return 1;
        }
        let node = self.node.get(&snapshot, LocalNode::query()).map(|node| node.name.as_str());
        let is_local = |backend: &Backend| {
            backend.node_name.is_empty() || node.is_some_and(|node| backend.node_name == *node)
        };
        // Of the rows of one address the first is that of the source with the highest precedence.
        let mut last = None;
        let rows = self.backends.prefix(&snapshot, Backend::of_service(name));
        rows.filter(|row| last.replace(row.address) != Some(row.address))
            .filter(|row| row.state == BackendState::Active && is_local(row))
            .count()
    }

    /// Returns the response to any request about the service.
    pub(crate) fn respond(&self, name: &ServiceName) -> Response<Full<Bytes>> {
        let local_endpoints = self.local_endpoints(name);
        let body =
            Body { service: Named { namespace: name.namespace(), name: name.name() }, local_endpoints };
        // As in Cilium, the body ends with a newline: Go's encoder writes one.
        let Ok(mut body) = serde_json::to_vec(&body) else { unreachable!("strings and a number") };
        body.push(b'\n');
        let mut response = Response::new(Full::from(body));
        if local_endpoints == 0 {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(WEIGHT, HeaderValue::from(local_endpoints));
        response
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'s> {
    service: Named<'s>,
    local_endpoints: usize,
}

#[derive(Serialize)]
struct Named<'s> {
    namespace: &'s str,
    name: &'s str,
}
