//! The listener on one address.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;

use bytes::Bytes;
use hive::prelude::*;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Empty;
use http_server::Pool;
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The listeners and their states.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listening {
    /// The error of each address that was tried; none for one that is served.
    tried: BTreeMap<IpAddr, Option<String>>,
    expected: usize,
}

impl Listening {
    pub(crate) fn expect(&mut self, addresses: &BTreeSet<IpAddr>) {
        self.expected = addresses.len();
    }

    pub(crate) fn remove(&mut self, ip: IpAddr) {
        self.tried.remove(&ip);
    }

    /// Whether each address was tried, with or without success.
    pub(crate) fn is_tried(&self) -> bool {
        self.expected != 0 && self.tried.len() >= self.expected
    }

    /// Returns the first error.
    pub(crate) fn error(&self) -> Option<&str> {
        self.tried.values().find_map(|error| error.as_deref())
    }

    fn set(&mut self, ip: IpAddr, error: Option<String>) {
        self.tried.insert(ip, error);
    }
}

/// The listener.
pub(crate) struct Listener {
    /// The address; the unspecified one of IPv6 for all addresses of both families.
    pub(crate) ip: IpAddr,
    pub(crate) port: u16,
    pub(crate) pool: Pool,
    pub(crate) state: watch::Sender<Listening>,
}

impl Listener {
    /// Serves the address until the job is cancelled.
    pub(crate) async fn serve(self, cx: JobCx) -> anyhow::Result<()> {
        let report = |error: &io::Error| self.report(error, &cx);
        let listener = http_server::bind_with_retry(self.ip, self.port, &cx, report).await;
        let Some(listener) = listener else { return Ok(()) };
        self.state.send_modify(|state| state.set(self.ip, None));
        respond_on(listener, &self.pool, &cx).await;
        Ok(())
    }

    /// Reports an error of listening.
    fn report(&self, error: &io::Error, cx: &JobCx) {
        let (ip, port) = (self.ip, self.port);
        let remedy = match error.kind() {
            io::ErrorKind::AddrInUse => {
                format!(
                    "port {port} of {ip} is in use: free it, or give all nodes another --cluster-health-port"
                )
            }
            _ => format!("port {port} of {ip}: {error}"),
        };
        if cx.health.degraded_anew("Other nodes cannot probe this one: cannot listen", &remedy) {
            tracing::error!(port, %ip, %error, "Other nodes cannot probe this one: cannot listen");
        }
        self.state.send_modify(|state| state.set(ip, Some(remedy)));
    }
}

/// Answers requests on the listener until the job is cancelled.
async fn respond_on(listener: TcpListener, pool: &Pool, cx: &JobCx) {
    let answer = service_fn(|request: Request<Incoming>| {
        std::future::ready(Ok::<_, Infallible>(respond(request.method(), request.uri().path())))
    });
    http_server::serve_probes(pool, listener, answer, cx).await;
}

/// Serves the socket in the namespace of the health endpoint until the job is cancelled. Its connections have a bound of their
/// own: those to the node do not take their place.
pub(crate) async fn serve_endpoint(listener: std::net::TcpListener, cx: JobCx) -> anyhow::Result<()> {
    respond_on(TcpListener::from_std(listener)?, &Pool::default(), &cx).await;
    Ok(())
}

/// Returns the response: 200 to `GET /hello`, else 404; none has a body.
fn respond(method: &Method, path: &str) -> Response<Empty<Bytes>> {
    let mut response = Response::new(Empty::new());
    if method != Method::GET || path != "/hello" {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hello_is_answered() {
        let status = |method: Method, path| respond(&method, path).status().as_u16();
        assert_eq!(status(Method::GET, "/hello"), 200);
        for (method, path) in
            [(Method::HEAD, "/hello"), (Method::POST, "/hello"), (Method::GET, "/"), (Method::GET, "/hello/")]
        {
            assert_eq!(status(method, path), 404, "{path}");
        }
    }
}
