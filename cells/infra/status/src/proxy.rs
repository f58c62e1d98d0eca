//! `GET /healthz` in the form of kube-proxy, for load balancers that check whether a node forwards traffic.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use api_models::DateTime;
use bytes::Bytes;
use hive::Health;
use http::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use k8s_tables::Row;
use k8s_tables::core::Node;
use local_node::LocalNode;
use statedb::{Query, Table};
use tokio::net::TcpListener;

use crate::collector::Collector;
use crate::error::Error;
use crate::kubelet;

/// The option with the address.
const OPTION: &str = "kube-proxy-replacement-healthz-bind-address";

/// The server for load balancers: its address and the sources of its answer.
#[derive(Clone)]
pub(crate) struct Proxy {
    /// IP address and port; no IP address stands for all addresses of both families.
    pub(crate) address: (Option<IpAddr>, u16),
    pub(crate) node: Option<Arc<Table<LocalNode>>>,
    pub(crate) nodes: Option<Arc<Table<Row<Node>>>>,
    pub(crate) health: Health,
}

/// Parses `10.0.0.1:10256`, `[fd00::1]:10256`, or `:10256` for all addresses.
pub(crate) fn address(text: &str) -> Result<(Option<IpAddr>, u16), Error> {
    let wrong = || Error::Address { option: OPTION, value: text.to_owned() };
    if let Some(port) = text.strip_prefix(':') {
        return Ok((None, port.parse().map_err(|_| wrong())?));
    }
    let address: SocketAddr = text.parse().map_err(|_| wrong())?;
    Ok((Some(address.ip()), address.port()))
}

impl Proxy {
    pub(crate) fn bind(&self) -> Result<TcpListener, Error> {
        let (ip, port) = self.address;
        let all = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
        let at = |ip: IpAddr| {
            let address = SocketAddr::new(ip, port);
            kubelet::listen(address).map_err(|source| Error::ListenAt { option: OPTION, address, source })
        };
        match ip {
            Some(ip) => at(ip),
            // `[::]` accepts IPv4 as well; a kernel without IPv6 needs 0.0.0.0.
            None => at(all[0]).or_else(|_| at(all[1])),
        }
    }

    /// Returns 200 if the agent is healthy (disregarding the API server) and its node is not being deleted; else 503
    /// with the time of the last healthy round.
    pub(crate) fn answer<B>(
        &self,
        collector: &Collector,
        request: &Request<B>,
        now: SystemTime,
    ) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::default());
        if request.uri().path() != "/healthz" {
            *response.status_mut() = StatusCode::NOT_FOUND;
            return response;
        }
        let is_well = collector.is_alive(false) && !self.is_node_deleted();
        let updated = if is_well { Some(now) } else { collector.last_well() };
        if !is_well {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        let (DateTime(updated), DateTime(now)) =
            (updated.map(DateTime::from).unwrap_or_default(), now.into());
        let body = format!("{{\"lastUpdated\": \"{updated}\",\"currentTime\": \"{now}\"}}");
        *response.body_mut() = Full::from(body);
        response
    }

    /// Whether the node's object is being deleted.
    fn is_node_deleted(&self) -> bool {
        let (Some(node), Some(nodes)) = (&self.node, &self.nodes) else { return false };
        let snapshot = nodes.snapshot();
        let Some(own) = node.get(&snapshot, LocalNode::query()) else { return false };
        let object = nodes.get(&snapshot, Query::primary(own.name.clone()));
        object.is_some_and(|object| object.metadata.deletion_timestamp.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_as_by_cilium() {
        assert_eq!(address(":10256").unwrap(), (None, 10_256));
        assert_eq!(address("0.0.0.0:10256").unwrap(), (Some([0, 0, 0, 0].into()), 10_256));
        assert_eq!(address("[::1]:1").unwrap(), (Some(Ipv6Addr::LOCALHOST.into()), 1));
        for wrong in ["10256", "localhost:10256", ":x", "1.2.3.4", ":65536"] {
            let error = address(wrong).unwrap_err().to_string();
            let said =
                format!("{OPTION}: '{wrong}' is wrong; give IP address and port, for instance 0.0.0.0:10256");
            assert_eq!(error, said);
        }
    }
}
